"""Faults that a process of a run plans for itself: signals at a given moment."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conftest  # noqa: F401  # no screen, one thread
from td3_lightning import Collector
from td3_lightning.cli.app import main
from td3_lightning.cli.trainer import Trainer
from td3_lightning.reporting import learning_curve

ANY_TIME, WRITING = "SIGKILL at any time", "SIGKILL in writing"
WRITES = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "os.link"}


def send(number: int, after: float) -> None:
    """Send this process a signal after the given CPU seconds."""
    due = time.process_time() + after

    def wait() -> None:
        while time.process_time() < due:
            time.sleep(0.0002)
        Path("struck").touch()
        os.kill(os.getpid(), number)

    threading.Thread(target=wait, daemon=True).start()


def when_called(owner: type, name: str, trouble: Callable[[], None]) -> None:
    """Start a fault when a method is called for the first time."""
    method = getattr(owner, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        setattr(owner, name, method)
        trouble()
        return method(*args, **kwargs)

    setattr(owner, name, called)


def watch_writes(at: float, delay: float) -> list[str]:
    """Count the writes, renames and deletions in the run's folder, and kill this process after one of them."""
    seen: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in WRITES or "lightning_logs" not in str(args[0]):
            return
        if event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR):
            return
        seen.append(f"{event} {args[0]}")
        if len(seen) == at:
            send(signal.SIGKILL, delay)

    sys.addaudithook(hook)
    return seen


def run(folder: Path, ckpt_path: Path | None, kind: str, moment: float, delay: float) -> tuple[int, int, float]:
    """Train in a folder with a planned fault. Return the exit status, the number of writes and the CPU seconds."""
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    learning_curve.write_curve = lambda metrics: metrics  # stateless, but a quarter of the time of a run
    sys.stdout = sys.stderr = Path("log").open("a", buffering=1)  # noqa: SIM115
    began: list[float] = []
    when_called(Trainer, "fit", lambda: began.append(time.process_time()))
    if kind == ANY_TIME:
        when_called(Trainer, "fit", lambda: send(signal.SIGKILL, moment))
    elif kind != WRITING and kind:
        when_called(Collector, "on_train_start", lambda: send(getattr(signal, kind), moment))
    writes = watch_writes(moment if kind == WRITING else -1, delay)
    words = ["fit", "--config", "run.yaml", *(["--ckpt_path", str(ckpt_path)] if ckpt_path else [])]
    status = main(words)
    return status, len(writes), time.process_time() - began[0] if began else 0.0

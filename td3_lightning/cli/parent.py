"""End this process after its launcher, or a process that it launched, has ended."""

import os
import signal
import threading
import time
from typing import Any

from torch import distributed

from td3_lightning.tuning.node import SWEEP

INTERVAL = 1.0  # seconds between two checks of the launcher
RANK_INTERVAL = 0.05  # seconds between two checks of the ranks; Lightning checks every 5, and kills this process
GRACE = 30.0  # seconds to save and exit after SIGTERM
_LAUNCHER = "TD3_LIGHTNING_LAUNCHER"  # PID of the process from which Lightning starts the others


def watch_ranks(launcher: Any) -> None:
    """End this process with status 1 if a rank that it started fails before the processes have formed a group.

    The status is 130 if Ctrl-C has ended the rank, because a terminal interrupts all ranks.
    Afterwards, their collective operations raise. The ranks watch this process, too.

    Args:
        launcher: Lightning's launcher. Its list `procs` is empty until the ranks are started.
    """
    os.environ[_LAUNCHER] = str(os.getpid())
    if hasattr(launcher, "procs"):
        threading.Thread(target=_watch_ranks, args=(launcher,), name="rank-watch", daemon=True).start()


def _watch_ranks(launcher: Any) -> None:
    while not distributed.is_initialized():
        for rank, process in enumerate(launcher.procs, start=1):
            if process.poll():
                os.write(2, f"Rank {rank} ended with status {process.returncode} before training began.\n".encode())
                for each in launcher.procs:
                    each.kill()
                interrupted = process.returncode in (130, -signal.SIGINT)
                os._exit(130 if interrupted else 1)  # the main thread is blocked in torch
        time.sleep(RANK_INTERVAL)


def watch_parent() -> None:
    """End this process when its launcher has ended.

    torch waits up to 30 minutes for a launcher that was killed before the processes formed a group. Only workers of
    torchrun, ranks that Lightning started and runs of a sweep watch their launcher.
    """
    sweep = os.environ.pop(SWEEP, None)  # not for the processes that this one starts
    by_torchrun = distributed.is_available() and distributed.is_torchelastic_launched()
    by_lightning = int(os.environ.get("LOCAL_RANK", "0")) > 0 and _LAUNCHER in os.environ
    if by_torchrun or by_lightning or sweep:
        parent = int(sweep) if sweep else os.getppid() if by_torchrun else int(os.environ[_LAUNCHER])
        threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    os.kill(os.getpid(), signal.SIGTERM)  # training saves and stops
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)  # it is blocked by a collective operation

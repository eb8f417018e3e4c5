"""End this process after its launcher, or a process that it launched, has ended."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from torch import distributed

from td3_lightning.tuning.node import SWEEP

INTERVAL = 1.0  # seconds between two checks of the launcher
RANK_INTERVAL = 0.05  # seconds between two checks of the ranks that start
GRACE = 30.0  # seconds to save and exit after SIGTERM
STOPPED = (130, 143, 129, 75)  # status of a run that a signal has stopped, in all processes
_LAUNCHER = "TD3_LIGHTNING_LAUNCHER"  # PID of the process from which Lightning starts the others


def watch_ranks(launcher: Any) -> None:
    """End this process with status 1 if a rank that it started fails before the processes have formed a group.

    The status is 130 if Ctrl-C has ended the rank, because a terminal interrupts all ranks. Afterwards, collective
    operations raise if a rank has failed, and this process has `GRACE` seconds to end. The ranks watch it, too.

    Args:
        launcher: Lightning's launcher. Its list `procs` is empty until the ranks are started.
    """
    os.environ[_LAUNCHER] = str(os.getpid())
    if hasattr(launcher, "procs"):
        threading.Thread(target=_watch_ranks, args=(launcher,), name="rank-watch", daemon=True).start()


class Rank:
    """Process of a rank. It hides its end from Lightning, which would kill this process within 5 seconds.

    Without it, a run would sometimes end with status -9 and without a message, or before it has printed its summary.

    Args:
        process: The process.
    """

    returncode = None

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process, self.pid = process, process.pid

    def poll(self) -> None:
        """Return that the process runs."""

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        self.process.send_signal(number)


def _watch_ranks(launcher: Any) -> None:
    while not distributed.is_initialized():
        rank = _failed_rank(launcher)
        if rank is not None:
            interrupted = launcher.procs[rank - 1].process.returncode in (130, -signal.SIGINT)
            _end(launcher, rank, "before training began", 130 if interrupted else 1)
        time.sleep(RANK_INTERVAL)
    while (rank := _failed_rank(launcher, STOPPED)) is None:
        time.sleep(INTERVAL)
    time.sleep(GRACE)
    _end(launcher, rank, f"more than {GRACE:g} s ago, so this process ends too", 1)


def _failed_rank(launcher: Any, planned: Sequence[int] = ()) -> int | None:
    """Return a rank that has ended, but not with status 0 or a planned one."""
    for index, process in enumerate(launcher.procs):
        if not isinstance(process, Rank):
            launcher.procs[index] = Rank(process)
        status = launcher.procs[index].process.poll()
        if status and status not in planned:
            return index + 1
    return None


def _end(launcher: Any, rank: int, when: str, status: int) -> None:
    """End this process, whose main thread may be blocked in torch, and the ranks."""
    os.write(2, f"Rank {rank} ended with status {launcher.procs[rank - 1].process.returncode} {when}.\n".encode())
    for each in launcher.procs:
        each.send_signal(signal.SIGKILL)
    os._exit(status)


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

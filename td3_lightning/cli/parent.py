"""The launcher of this process: when it ends, so does this process."""

import os
import signal
import threading
import time

from torch import distributed

INTERVAL = 1.0  # seconds between two looks


GRACE = 30.0  # seconds to save and to end after SIGTERM


_LAUNCHER = "TD3_LIGHTNING_LAUNCHER"  # the process that Lightning starts the others from


def name_launcher() -> None:
    """Tell the processes that Lightning starts from this one which process to watch."""
    os.environ[_LAUNCHER] = str(os.getpid())


def watch_parent() -> None:
    """End this process when the one that launched it is gone.

    torch waits up to 30 minutes for a launcher that was killed before the processes formed a group. Only workers of
    torchrun, and the further ranks that Lightning starts, are watched.
    """
    by_torchrun = distributed.is_available() and distributed.is_torchelastic_launched()
    by_lightning = int(os.environ.get("LOCAL_RANK", "0")) > 0 and _LAUNCHER in os.environ
    if by_torchrun or by_lightning:
        parent = os.getppid() if by_torchrun else int(os.environ[_LAUNCHER])
        threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    os.kill(os.getpid(), signal.SIGTERM)  # a run saves and stops
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)  # it waits for a process that is gone

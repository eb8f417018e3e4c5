"""End this process after its launcher has ended."""

import os
import signal
import threading
import time

from torch import distributed

from td3_lightning.tuning.node import SWEEP

INTERVAL = 1.0  # seconds between two checks


GRACE = 30.0  # seconds to save and exit after SIGTERM


_LAUNCHER = "TD3_LIGHTNING_LAUNCHER"  # PID of the process from which Lightning starts the others


def name_launcher() -> None:
    """Set the PID that the processes started by Lightning watch to this process."""
    os.environ[_LAUNCHER] = str(os.getpid())


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

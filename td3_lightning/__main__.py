"""python -m td3_lightning"""

import os
import signal
import sys
from types import FrameType

from td3_lightning.checkpointing.interruption import ExitOnSignal
from td3_lightning.cli.app import main


def script() -> int:
    """The command `td3-lightning`, which finds modules in the working directory as `python -m` does."""
    sys.path.insert(0, os.getcwd())
    return run()


def run() -> int:
    """Run the command line in a process of its own, and close the environments when a signal ends it.

    In training, `StopOnSignal` handles the same signals. A process among several keeps the default handlers, because
    a process that waits for another one cannot run Python code.
    """
    if not {"LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID"} & os.environ.keys():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)
    return main()


def _end(number: int, frame: FrameType | None) -> None:
    raise ExitOnSignal(128 + number)


if __name__ == "__main__":
    sys.exit(run())

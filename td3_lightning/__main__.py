"""Entry point of `python -m td3_lightning` and of the command `td3-lightning`."""

import os
import signal
import sys
from types import FrameType

from td3_lightning.checkpointing.interruption import ExitOnSignal
from td3_lightning.cli.app import main


def script() -> int:
    """Run the command `td3-lightning`. It imports modules from the working directory, as `python -m` does."""
    sys.path.insert(0, os.getcwd())
    return run()


def run() -> int:
    """Run the command line, and close the environments when a signal ends the process.

    `StopOnSignal` handles the same signals during training. One of several processes keeps the default handlers,
    because a process that is blocked in a collective operation cannot run Python code.
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

"""Entry point of `python -m td3_lightning` and of the command `td3-lightning`."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from td3_lightning import __version__
from td3_lightning.cli.commands import command_error


def script() -> int:
    """Run the command `td3-lightning`. It imports modules from the working directory, as `python -m` does."""
    sys.path.insert(0, os.getcwd())
    return run()


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line, and close the environments when a signal ends the process.

    `StopOnSignal` handles the same signals during training. One of several processes keeps the default handlers,
    because a process that is blocked in a collective operation cannot run Python code. Return the exit code.
    """
    words = sys.argv[1:] if args is None else args
    if "--version" in words:
        print(f"td3-lightning {__version__}")
        return 0
    if error := command_error(words):
        print(error, file=sys.stderr)
        return 2
    if words[0] == "sweep":
        from td3_lightning.tuning.node import hide_launcher

        hide_launcher()
    main = import_main()
    if not {"LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID"} & os.environ.keys():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)
    return main(words)


def import_main() -> Callable[[Sequence[str] | None], int]:
    """Import the command line without garbage collection, because the imports create a million objects that stay."""
    gc.disable()
    try:
        from td3_lightning.cli.deferred_compiler import defer_compiler

        defer_compiler()
        from td3_lightning.cli.app import main
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # without a traceback of the imports
    finally:
        gc.freeze()
        gc.enable()
    return main


def _end(number: int, _: FrameType | None) -> None:
    from td3_lightning.errors import ExitOnSignal

    raise ExitOnSignal(128 + number)


if __name__ == "__main__":
    sys.exit(run())

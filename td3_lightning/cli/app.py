"""Entry point of the command line: exit codes and error messages."""

import argparse
import ctypes
import logging
import os
import platform
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from importlib import import_module

from torch import distributed

from td3_lightning.cli.command_line import CommandLine
from td3_lightning.cli.commands import COMMANDS, OTHER_COMMANDS, command_error
from td3_lightning.cli.error_messages import exit_code, explain_parser_error, user_message
from td3_lightning.cli.help import command_help, program_help
from td3_lightning.errors import ExitOnSignal, UsageError
from td3_lightning.reporting.console import discard_unwritable, echo, make_streams_tolerant
from td3_lightning.tuning.node import SWEEP

INTERVAL = 1.0  # seconds between two checks of the parent
GRACE = 30.0  # seconds to save and exit after SIGTERM

# Lightning logs these at every start.
SUPPRESSED_MESSAGES = re.compile(
    r"[GT]PU available|💡 Tip|LOCAL_RANK|Seed set to|Restoring states from|`weights_only` was not|"
    r"Found current_model_state|You're using the WeightAveraging callback"
)

SUPPRESSED_WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)`",
    r"The number of training batches .* is smaller than the logging interval",
    r"Checkpoint directory .* exists and is not empty",  # true for every resumed run
    r"The dirpath has changed from",  # a resumed run may have another folder
    r"Be aware that when using `ckpt_path`, callbacks",
    r"It is recommended to use `self.log\(.*sync_dist",  # all ranks evaluate the same episodes
    r"The checkpoint was not created with WeightAveraging",  # a new stage may add averaging
)


def main(args: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        args: Words after the name of the program; None uses `sys.argv`.

    Returns:
        The exit code: 0, 1 if an environment or the training fails, 2 for an invalid command or setting, or 130 after
        Ctrl-C. One sentence on stderr explains an error.

    Raises:
        SystemExit: `--help` was given, or a signal has ended the training.
    """
    watch_parent()
    tune_malloc()
    suppress_messages()
    make_streams_tolerant()
    words = sys.argv[1:] if args is None else args
    try:
        return _run(words)
    except ExitOnSignal:
        if started_by_lightning():  # its launcher would kill all ranks before they have saved
            return 0
        raise
    except Exception as error:
        if isinstance(error, BrokenPipeError) and discard_unwritable():  # `head` has closed the pipe
            return 0
        message = user_message(error)
        if message is None:
            raise
        print(message, file=sys.stderr)
        return exit_code(error)
    finally:
        discard_unwritable()


def _run(words: Sequence[str]) -> int:
    """Run a command, and convert Ctrl-C to an exit code."""
    if message := command_error(words):
        raise UsageError(message)
    try:
        if words[0] not in OTHER_COMMANDS and not {"-h", "--help"}.isdisjoint(words):
            for line in command_help(words[0], words[1:]) if words[0] in COMMANDS else program_help():
                echo(line)
        elif words[0] in OTHER_COMMANDS:
            module, function = OTHER_COMMANDS[words[0]]
            getattr(import_module(f"td3_lightning.cli.{module}"), function)(words[1:])
        else:
            CommandLine(words)
    except argparse.ArgumentError as error:
        raise UsageError(explain_parser_error(str(error), [])) from error
    except KeyboardInterrupt:
        return 130
    except SystemExit as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):  # Lightning exits with 1 on Ctrl-C outside of training
            return 130
        raise
    return 0


def tune_malloc() -> None:
    """Make glibc keep freed memory. By default it returns large temporary buffers to the system at every update."""
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold, most = -1, -3, 256 * 2**20
        ctypes.CDLL(None).mallopt(mmap_threshold, most)
        ctypes.CDLL(None).mallopt(trim_threshold, most)


def suppress_messages() -> None:
    """Suppress messages and warnings of Lightning."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(lambda record: not SUPPRESSED_MESSAGES.search(record.getMessage()))
    for message in SUPPRESSED_WARNINGS:
        warnings.filterwarnings("ignore", message)


def started_by_lightning() -> bool:
    """Return whether Lightning has started this process as a rank above 0 on the machine of its launcher."""
    by_others = distributed.is_available() and distributed.is_torchelastic_launched()
    return not by_others and "SLURM_PROCID" not in os.environ and int(os.environ.get("LOCAL_RANK", "0")) > 0


def watch_parent() -> None:
    """End this process when its launcher has ended: that of torchrun, of Lightning, or of a sweep."""
    sweep = os.environ.pop(SWEEP, None)  # not for the processes that this one starts
    by_torchrun = distributed.is_available() and distributed.is_torchelastic_launched()
    if sweep or by_torchrun or started_by_lightning():
        parent = int(sweep) if sweep else os.getppid()
        threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    os.kill(os.getpid(), signal.SIGTERM)  # training saves and stops
    time.sleep(GRACE)
    os._exit(1)  # it is blocked by a collective operation

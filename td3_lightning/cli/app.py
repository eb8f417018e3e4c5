"""Entry point of the command line: exit codes and error messages."""

import ctypes
import platform
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from td3_lightning.cli.command_line import CommandLine
from td3_lightning.cli.commands import OTHER_COMMANDS
from td3_lightning.cli.error_messages import exit_code, user_message
from td3_lightning.cli.message_filters import suppress_messages
from td3_lightning.cli.parent import watch_parent
from td3_lightning.reporting.console import discard, discard_unwritable, make_streams_tolerant

LONG_WORD = re.compile(r"([^\s/]{100})[^\s/]{156,}")  # longer than the name of any file


def main(args: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        args: Words after the name of the program; None uses `sys.argv`.

    Returns:
        The exit code: 0, 1 if an environment or the training fails, 2 for an invalid command or setting, 130 after
        Ctrl-C, or 141 if stdout is closed. One sentence on stderr explains an error.

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
    except Exception as error:
        message = user_message(error)
        if message is None:
            raise
        print(LONG_WORD.sub(r"\1...", message), file=sys.stderr)
        return exit_code(error)
    finally:
        discard_unwritable()


def _run(words: Sequence[str]) -> int:
    """Run a command, and convert Ctrl-C and a closed pipe to exit codes."""
    try:
        if words and words[0] in OTHER_COMMANDS:
            module, function = OTHER_COMMANDS[words[0]]
            getattr(import_module(f"td3_lightning.cli.{module}"), function)(words[1:])
        else:
            CommandLine(words)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        if not stdout_closed():
            raise
        return 128 + signal.SIGPIPE
    except SystemExit as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):  # Lightning exits with 1 on Ctrl-C outside of training
            return 130
        if ended.code or not discard_unwritable():
            raise
        return 128 + signal.SIGPIPE
    return 128 + signal.SIGPIPE if discard_unwritable() else 0


def stdout_closed() -> bool:
    """Return whether the reader of stdout, for example `head`, has ended. If so, discard all further output."""
    try:
        print(flush=True)
    except BrokenPipeError:
        discard(sys.stdout)
        return True
    return False


def tune_malloc() -> None:
    """Make glibc keep freed memory. By default it returns large temporary buffers to the system at every update."""
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold, most = -1, -3, 256 * 2**20
        ctypes.CDLL(None).mallopt(mmap_threshold, most)
        ctypes.CDLL(None).mallopt(trim_threshold, most)

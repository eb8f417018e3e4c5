"""Print text to terminals that cannot encode every character and to pipes that the reader has closed."""

import os
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

STRICT = ("strict", "surrogateescape")  # the second in the locale C


def make_streams_tolerant() -> None:
    """Make stdout and stderr print "?" for characters that their encoding lacks, for every print in the process.

    Output to a stream that was closed before the start, as by `>&-`, is discarded.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # it stays open
        elif getattr(stream, "errors", None) in STRICT and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def echo(*words: Any, **kwargs: Any) -> None:
    """Print and flush. Discard the output after the reader of a pipe, for example `head`, has closed it."""
    try:
        print(*words, **kwargs, flush=True)
    except OSError:
        discard(sys.stdout)


def discard_unwritable() -> bool:
    """Write the rest of the output, or discard it if a pipe or the terminal is closed.

    Otherwise the interpreter prints an error and exits with 120.

    Returns:
        Whether output was discarded.
    """
    discarded = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            discard(stream)
            discarded = True
    return discarded


def discard(stream: TextIO) -> None:
    """Discard the output of a stream from now on."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)


def show(table: Table) -> None:
    """Print a table. Draw its borders in ASCII if the encoding of the terminal lacks box characters."""
    print(table_text(table), end="")


def table_text(table: Table, width: int | None = None) -> str:
    """Return a table as text of at most a number of columns, by default those of the terminal."""
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get()

"""Printing text, also to a terminal that cannot encode all of it, and to a pipe whose reader has ended."""

import codecs
import os
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

ASCII = {"±": "+-", "█": "#", "→": "->", "\u2013": "-", "\u2014": "-", "…": "..."}


FALLBACK = "td3_lightning.ascii"


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """Encode what an encoding lacks as ASCII; the characters that have no counterpart become question marks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(ASCII.get(character, "?") for character in lacking), error.end


codecs.register_error(FALLBACK, _in_ascii)


def make_streams_tolerant() -> None:
    """Let stdout and stderr replace characters that their encoding lacks, whoever prints them."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=FALLBACK)


def printable(text: str, stream: TextIO | None) -> str:
    """Replace the characters of a text that a stream cannot encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, FALLBACK).decode(encoding)


def echo(*words: Any, **kwargs: Any) -> None:
    """Print and flush. After the reader of a pipe has ended, such as `head`, print nothing from then on."""
    try:
        print(*(printable(str(word), sys.stdout) for word in words), **kwargs, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def show(table: Table) -> None:
    """Print a table. Its lines are ASCII where the encoding of the terminal is not a form of Unicode."""
    console = Console()
    with console.capture() as captured:
        console.print(table)
    print(printable(captured.get(), sys.stdout), end="")

"""Types of command-line arguments: a value that does not fit ends the program with one sentence."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from td3_lightning.errors import UsageError


def positive_int(text: str) -> int:
    """Return a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}.")
    return value


def non_negative_int(text: str) -> int:
    """Return a whole number of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}.")
    return value


def positive_float(text: str) -> float:
    """Return a number above 0."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}.")
    return value


def interpreter(name: str) -> str:
    """Return the absolute path of a Python interpreter, given its path or a name on PATH."""
    found = shutil.which(name)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"must be a Python interpreter, got {name}. Use the path of one with benchmarks/requirements.txt installed."
        )
    return os.path.abspath(found)  # processes start in another folder


@contextmanager
def exit_on_usage_errors() -> Iterator[None]:
    """Print a `UsageError` and end the program with status 2, as an invalid argument does."""
    try:
        yield
    except UsageError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error

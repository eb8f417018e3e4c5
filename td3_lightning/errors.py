"""The exception that is meant to be read by a user."""

import re


class UsageError(ValueError):
    """A mistake of the user's: one sentence that says what came, what was wanted and what to do.

    The command line prints the sentence alone and exits with 2; from Python it is a `ValueError`.
    """


def check_at_least(name: str, value: float, least: float) -> None:
    """Raises `UsageError` for a setting that is too small."""
    if value < least:
        raise UsageError(f"{name} is at least {least}, but {value} came; give a larger number.")


def one_line(text: object) -> str:
    """A text of several lines and sentences as one."""
    return re.sub(r"\. (?=[A-Z`])", "; ", " ".join(str(text).split()))

"""The exceptions that are meant to be read by a user."""

import math
import re


class UsageError(ValueError):
    """A mistake of the user's: one sentence that says what came, what was wanted and what to do.

    The command line prints the sentence alone and exits with 2; from Python it is a `ValueError`.
    """


class RunError(RuntimeError):
    """A fault that a run met and cannot go on from, in one sentence.

    The command line prints the sentence alone and exits with 1.
    """


class EnvError(RunError):
    """An environment raised, or answered what no environment may answer."""


class LearnerError(RunError):
    """A loss, a Q-value or a weight is not finite."""


def check_at_least(name: str, value: float | None, least: float) -> None:
    """Raises `UsageError` for a setting that is too small, or no number at all."""
    if value is None or not value >= least:
        raise UsageError(f"{name} is at least {least}, but {value} came; give a larger number.")


def check_finite(name: str, value: float) -> None:
    """Raises `UsageError` for a setting without an end."""
    if not math.isfinite(value):
        raise UsageError(f"{name} is finite, but {value} came; give a number.")


def one_line(text: object) -> str:
    """A text of several lines and sentences as one."""
    return re.sub(r"\. (?=[A-Z`])", "; ", " ".join(str(text).split()))

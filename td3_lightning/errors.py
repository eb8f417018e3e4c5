"""The exceptions that are meant to be read by a user."""

import re
import traceback


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
    """Raise `UsageError` if a setting is too small or not a number."""
    if value is None or not value >= least:
        raise UsageError(f"{name} must be at least {least}, got {value}. Use a larger value.")


def one_line(text: object) -> str:
    """A text of several lines and sentences as one."""
    return re.sub(r"\. (?=[A-Z`])", "; ", " ".join(str(text).split()))


def described(error: BaseException) -> str:
    """Describe an exception in one line: its type, its text and the place that raised it."""
    try:
        text = one_line(error)
    except Exception:  # a user's __str__ may raise anything
        text = ""
    said = f"{type(error).__name__}: {text}".removesuffix(": ")
    places = traceback.extract_tb(error.__traceback__)
    return f"{said} ({places[-1].filename}, line {places[-1].lineno})" if places else said


def is_ours(error: BaseException) -> bool:
    """Tell whether this package raised an exception on purpose, such as a mistake or the end after a signal."""
    return isinstance(error, UsageError | RunError) or type(error).__module__.split(".")[0] == __name__.split(".")[0]

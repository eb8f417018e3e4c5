"""Exceptions with messages for the user, and the checks of settings that raise them."""

import math
import re
import traceback
from collections.abc import Iterable
from importlib import import_module
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Errors of PyYAML besides its YAMLError, for a text such as 2025-31-12 or "!!bool x".
OTHER_YAML_ERRORS = (ValueError, LookupError, AttributeError, RecursionError)
FEW = 1_000  # numbers up to which Python checks an array faster than NumPy, or little slower


class UsageError(ValueError):
    """Report an invalid setting or argument in one line: the setting, the constraint, the value and a fix.

    The command line prints only the message and exits with status 2. In Python, the exception is a `ValueError`.
    """


class RunError(RuntimeError):
    """Report a failure that ends a run, in one line.

    The command line prints only the message and exits with status 1.
    """


class EnvError(RunError):
    """Report an environment that raised an exception or returned an invalid value."""


class LearnerError(RunError):
    """Report a loss, a Q-value or a weight that is not finite."""


def one_line(text: object) -> str:
    """Join the lines of a text, and separate its sentences with semicolons."""
    return re.sub(r"\. (?=[A-Z`])", "; ", " ".join(str(text).split()))


def described(error: BaseException) -> str:
    """Describe an exception in one line: its type, its text and the place that raised it."""
    said = f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")
    places = traceback.extract_tb(error.__traceback__)
    return f"{said} ({places[-1].filename}, line {places[-1].lineno})" if places else said


class ExitOnSignal(SystemExit):
    """End the process after a signal, with the exit status that a shell expects."""


def is_ours(error: BaseException) -> bool:
    """Return whether an exception is one of this package, for example a `UsageError` or the exit after a signal."""
    return isinstance(error, UsageError | RunError) or type(error).__module__.split(".")[0] == __name__.split(".")[0]


def refuse(name: str, constraint: str, value: object, fix: str) -> UsageError:
    """Build the error for a setting that does not satisfy its constraint."""
    return UsageError(f"{name} must be {constraint}, got {shown(value)}. {fix}")


def shown(value: object) -> str:
    """Show a value in one line of at most 80 characters."""
    text = one_line(value.item() if isinstance(value, np.generic) else repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def require_int(name: str, value: Any, least: int | None = None, most: int | None = None, fix: str = "") -> int:
    """Return an integer in [least, most]. Integers of NumPy and torch are accepted, floats are not.

    `name` is the setting, and `fix` the advice if the value is out of range.
    """
    scalar: Any = None if isinstance(value, bool) or getattr(value, "shape", ()) != () else value
    try:
        number = index(scalar)
    except TypeError:
        raise refuse(name, "an integer", value, "Use an integer.") from None
    too_small = least is not None and number < least
    if too_small or (most is not None and number > most):
        raise refuse(name, _interval(least, most), value, fix or _other(too_small))
    return number


def require_ints(name: str, values: Any, least: int) -> list[int]:
    """Return a list of integers that are at least `least`."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise refuse(name, "a list of integers", values, "Use a list, for example [256, 256].")
    return [require_int(f"{name}[{place}]", number, least) for place, number in enumerate(values)]


def require_float(
    name: str,
    value: Any,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    fix: str = "",
) -> float:
    """Return a finite number in the given interval. Numbers of NumPy and torch are accepted.

    `least` and `most` are allowed, `above` and `below` are not. `fix` is the advice if the value is out of range.
    """
    number = as_float(value)
    if number is None:
        raise refuse(name, "a number", value, "Use a number.")
    too_small = (least is not None and number < least) or (above is not None and number <= above)
    too_large = (most is not None and number > most) or (below is not None and number >= below)
    if too_small or too_large:
        raise refuse(name, _interval(least, most, above, below), value, fix or _other(too_small))
    if not math.isfinite(number):
        raise refuse(name, "finite", value, fix or "Use a finite number.")
    return number


def require_floats(name: str, values: Any) -> list[float]:
    """Return a list of finite numbers."""
    if isinstance(values, str) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) != 1:
        raise refuse(name, "a list of numbers", values, "Use a list with one number per action.")
    return [require_float(f"{name}[{place}]", number) for place, number in enumerate(values)]


def require_bool(name: str, value: Any) -> bool:
    """Return a bool. Other types are refused, because Python evaluates the text "false" as true."""
    if not isinstance(value, bool | np.bool_):
        raise refuse(name, "true or false", value, "Use true or false without quotes.")
    return bool(value)


def require_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return one of the given strings."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        raise refuse(name, f"one of {', '.join(choices)}", value, f"Use {choices[0]!r}, for example.")
    return value


def require_rows(name: str, value: Any, width: int) -> NDArray[Any]:
    """Return finite numbers as an array (width,) or (n, width)."""
    rows = np.asarray(value)
    if not 1 <= rows.ndim <= 2 or rows.shape[-1] != width or rows.dtype.kind not in "biuf":
        expected, fix = f"numbers of shape ({width},) or (n, {width})", "Use one row per observation."
        raise UsageError(f"{name} must be {expected}, got shape {rows.shape} of {rows.dtype}. {fix}")
    if rows.dtype == np.float32 and rows.size < FEW and all(map(math.isfinite, rows.ravel().tolist())):
        return rows  # the observation of a step, in half the time
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(rows.astype(np.float32, copy=False))
    if not is_finite.all():
        raise refuse(name, "finite in float32", float(rows[~is_finite][0]), "Use the last finite observation, or stop.")
    is_known = rows.dtype.isnative and rows.dtype.itemsize <= 8  # torch has neither big-endian numbers nor longdouble
    return rows if is_known else rows.astype(np.float64)


def as_float(value: Any) -> float | None:
    """Convert a number to a float, or return None for another type. An integer out of range becomes infinite."""
    if isinstance(value, bool | np.bool_ | str | bytes) or getattr(value, "shape", ()) != ():
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except TypeError:
        return None


def install_hint(extra: str) -> str:
    """Return how to install an extra. The package is on no index, where a stranger could take its name."""
    return f"Use pip install -c constraints.txt -e '.[{extra}]'."


def import_extra(package: str, purpose: str, extra: str) -> Any:
    """Import a package that an extra of td3_lightning installs, or raise `UsageError`."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise UsageError(f"{purpose} requires the package {error.name}, got none. {install_hint(extra)}") from error


def _other(too_small: bool) -> str:
    return f"Use a {'larger' if too_small else 'smaller'} value."


def _interval(least: float | None, most: float | None, above: float | None = None, below: float | None = None) -> str:
    low, high = (
        None if bound is None else str(bound) if isinstance(bound, int) else f"{bound:g}"
        for bound in (least if above is None else above, most if below is None else below)
    )
    if low is not None and high is not None:
        return f"in {'[' if above is None else '('}{low}, {high}{']' if below is None else ')'}"
    if low is not None:
        return f"at least {low}" if above is None else f"greater than {low}"
    return f"at most {high}" if below is None else f"less than {high}"

"""Schedules: values that depend on the number of environment steps."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from td3_lightning.errors import as_float, refuse, require_float, require_int
from td3_lightning.serialization.configurable import Configurable, from_config


class Schedule(Configurable, ABC):
    """Map a number of environment steps to a value."""

    @abstractmethod
    def __call__(self, env_steps: int) -> float:
        """Return the value after `env_steps` environment steps."""


class Constant(Schedule):
    """Keep one value at every step.

    Args:
        value: The value.

    Raises:
        UsageError: The value is not a finite number.
    """

    def __init__(self, value: float) -> None:
        self.value = require_float("Constant.value", value)

    def __call__(self, env_steps: int) -> float:
        return self.value


class Linear(Schedule):
    """Change a value linearly, then keep its end.

    Args:
        start: Value at and before `begin`.
        end: Value at and after `begin + steps`.
        steps: Length of the change in environment steps.
        begin: Start of the change in environment steps.

    Raises:
        UsageError: A value is not a finite number, or a number of steps is out of range.
    """

    def __init__(self, start: float, end: float, steps: int, begin: int = 0) -> None:
        self.start, self.end = require_float("Linear.start", start), require_float("Linear.end", end)
        self.steps = require_int("Linear.steps", steps, least=1)
        self.begin = require_int("Linear.begin", begin, least=0)

    def __call__(self, env_steps: int) -> float:
        done = min(max((env_steps - self.begin) / self.steps, 0.0), 1.0)
        if done == 1:  # the sum below may differ from the end by rounding
            return self.end
        return self.start + done * (self.end - self.start)


def varies(value: Any) -> bool:
    """Return whether a value is a schedule that is not constant."""
    return isinstance(value, Schedule) and not isinstance(value, Constant)


def as_schedule(
    name: str,
    value: float | Schedule | Mapping[str, Any],
    least: float | None = None,
    most: float | None = None,
    fix: str = "",
) -> Schedule:
    """Convert a number, or a mapping with `class_path` and `init_args`, to a schedule with values in an interval.

    Args:
        name: Name of the setting in errors.
        value: Schedule, number or mapping.
        least, most, fix: Interval of the values, and advice for one outside of it, as in `require_float`.

    Raises:
        UsageError: The value is no schedule, or its first value, or the end of a `Linear`, is out of range.
    """
    schedule = _schedule(value, name)
    require_float(name, schedule(0), least, most, fix=fix)
    if isinstance(schedule, Linear):  # all values are between the first and the last
        require_float(f"the end of {name}", schedule.end, least, most, fix=fix)
    return schedule


def as_int_schedule(
    name: str, value: int | Schedule | Mapping[str, Any], fix: str = "", most: float | None = None
) -> Schedule:
    """Convert a positive integer to a schedule as `as_schedule` does. The values of another schedule are rounded later.

    Raises:
        UsageError: A number is not a positive integer, or a schedule starts or ends below 1.
    """
    if not isinstance(value, Schedule | Mapping):
        value = require_int(name, value, least=1, fix=fix)
    schedule = as_schedule(name, value, least=1, most=most, fix=fix)
    if isinstance(schedule, Constant) and not schedule.value.is_integer():
        raise refuse(name, "an integer", schedule.value, "Use an integer.")
    return schedule


def _schedule(value: float | Schedule | Mapping[str, Any], name: str) -> Schedule:
    if isinstance(value, Schedule):
        return value
    if as_float(value) is not None:
        return Constant(require_float(name, value))
    schedule = from_config(Schedule, value)  # type: ignore[type-abstract]
    if schedule is None:
        fix = "Use Linear(...), or import the class of your own Schedule before you load a checkpoint that contains it."
        raise refuse(name, "a number or a Schedule", value, fix)
    return schedule

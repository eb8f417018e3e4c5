"""Values that change with the environment's clock: `env_steps` in, a number out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from td3_lightning.errors import as_float, refuse, require_float, require_int
from td3_lightning.serialization.configurable import Configurable, from_config


class Schedule(Configurable, ABC):
    """Turns `env_steps` into a value."""

    @abstractmethod
    def __call__(self, env_steps: int) -> float:
        """The value after `env_steps` environment steps."""


class Constant(Schedule):
    """The same value at every step.

    Args:
        value: The value.
    """

    def __init__(self, value: float) -> None:
        self.value = require_float("Constant.value", value)

    def __call__(self, env_steps: int) -> float:
        return self.value


class Linear(Schedule):
    """A straight line from one value to another, then level.

    Args:
        start: Value at and before `begin`.
        end: Value at and after `begin + steps`.
        steps: Length of the line in environment steps.
        begin: Where the line starts, in environment steps.
    """

    def __init__(self, start: float, end: float, steps: int, begin: int = 0) -> None:
        self.start, self.end = require_float("Linear.start", start), require_float("Linear.end", end)
        self.steps = require_int("Linear.steps", steps, least=1)
        self.begin = require_int("Linear.begin", begin, least=0)

    def __call__(self, env_steps: int) -> float:
        done = min(max((env_steps - self.begin) / self.steps, 0.0), 1.0)
        return self.end if done == 1 else self.start + done * (self.end - self.start)  # the sum may round beside it


def check_schedule(name: str, schedule: Schedule) -> None:
    """Raise `UsageError` for a schedule that begins, or as a line ends, below 0 or with an infinite value."""
    require_float(name, schedule(0), least=0)
    if isinstance(schedule, Linear):
        require_float(f"the end of {name}", schedule.end, least=0)


def as_schedule(value: float | Schedule | Mapping[str, Any], name: str = "a schedule") -> Schedule:
    """Return a schedule as it is, a number as a `Constant`, and plain data as the schedule that it describes.

    Args:
        value: The schedule, number or plain data.
        name: Name of the setting, for an error.
    """
    if isinstance(value, Schedule):
        return value
    if as_float(value) is not None:
        return Constant(require_float(name, value))
    schedule = from_config(Schedule, value)  # type: ignore[type-abstract]
    if schedule is None:
        fix = "Use Linear(...), or import the class of your own Schedule before a checkpoint that holds it is loaded."
        raise refuse(name, "a number or a Schedule", value, fix)
    return schedule

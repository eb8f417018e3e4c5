"""Values that change with the environment's clock: `env_steps` in, a number out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Real
from typing import Any

from td3_lightning.errors import UsageError, check_at_least, check_finite
from td3_lightning.recipes import Recipe, from_plain


class Schedule(Recipe, ABC):
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
        self.value = float(value)

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
        if steps < 1 or begin < 0:
            raise UsageError(
                f"A Linear schedule needs steps >= 1 and begin >= 0, but steps={steps} and begin={begin} came; "
                "give both in environment steps."
            )
        self.start, self.end, self.steps, self.begin = float(start), float(end), int(steps), int(begin)

    def __call__(self, env_steps: int) -> float:
        done = min(max((env_steps - self.begin) / self.steps, 0.0), 1.0)
        return self.end if done == 1 else self.start + done * (self.end - self.start)  # the sum may round beside it


def check_schedule(name: str, schedule: Schedule) -> None:
    """Raises `UsageError` for one that begins, or as a line ends, below 0 or with an infinite value."""
    ends = {name: schedule(0)} | ({f"the end of {name}": schedule.end} if isinstance(schedule, Linear) else {})
    for what, value in ends.items():
        check_at_least(what, value, 0)
        check_finite(what, value)


def as_schedule(value: float | Schedule | Mapping[str, Any]) -> Schedule:
    """A schedule stays itself; a number becomes a `Constant`, and plain data what it was made from."""
    if isinstance(value, Schedule):
        return value
    if isinstance(value, Real):
        return Constant(float(value))
    schedule = from_plain(Schedule, value)  # type: ignore[type-abstract]
    if schedule is None:
        raise UsageError(
            f"A number or a schedule is wanted, but {value!r} came; give a number, Linear(...), or a Schedule of "
            "yours, imported before a checkpoint that holds it is loaded."
        )
    return schedule

"""A search space: the settings that a sweep varies, and their values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from td3_lightning.errors import as_float, refuse, require_bool, require_float

if TYPE_CHECKING:
    from optuna.trial import Trial

KEYS = ("low", "high", "log", "step", "choices")
MOST_STEPS = 10**9  # of a range; Optuna fails with many more
FIXED = ("config", "name", "ckpt_path", "help", "print_config")  # flags of `fit` that the sweep itself decides
COMMON = ("checkpoint.monitor", "checkpoint.mode", "trainer.default_root_dir")  # settings that all trials share


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included.

    Attributes:
        low: Smallest number.
        high: Largest number.
        log: Whether the logarithm is uniform.
        step: Distance between two numbers; None for all numbers.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def ends(self) -> list[Any]:
        """Return the smallest and the largest value."""
        return [self.low, self.high] if self.is_integer else [float(self.low), float(self.high)]

    @property
    def is_integer(self) -> bool:
        """Return whether the range has integers only: both ends and the step are integers."""
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))

    def suggest(self, trial: "Trial", name: str) -> Any:
        """Return the value of a trial."""
        if self.is_integer:
            return trial.suggest_int(name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)

    def decode(self, stored: Any) -> Any:
        """Convert a value from Optuna's form to that of the space."""
        return stored


@dataclass(frozen=True)
class Choices:
    """A list of values.

    Attributes:
        values: The values, of any type that YAML has.
    """

    values: tuple[Any, ...]

    @property
    def ends(self) -> list[Any]:
        """Return all values."""
        return list(self.values)

    def suggest(self, trial: "Trial", name: str) -> Any:
        """Return the value of a trial. Optuna stores lists and mappings as text."""
        return self.decode(trial.suggest_categorical(name, [_stored(value) for value in self.values]))

    def decode(self, stored: Any) -> Any:
        """Convert a value from Optuna's form to that of the space."""
        return next(value for value in self.values if json.dumps(_stored(value)) == json.dumps(stored))


class Space:
    """The settings that a sweep varies.

    Args:
        entries: For each setting, {low, high} with optional log and step, or {choices}.

    Raises:
        UsageError: An entry is not valid.
    """

    def __init__(self, entries: Mapping[str, Any]) -> None:
        if not isinstance(entries, Mapping) or not entries:
            raise refuse("space", "a mapping of settings", entries, "Use model.actor_lr: {low: 1e-5, high: 1e-3}.")
        self.entries = entries
        self.dimensions = {str(name): _dimension(str(name), entry) for name, entry in entries.items()}

    def suggest(self, trial: "Trial") -> dict[str, Any]:
        """Return the settings of a trial. A value that the trial already has is kept."""
        return {name: each.suggest(trial, name) for name, each in self.dimensions.items()}

    def decode(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a trial, given its parameters in Optuna's form."""
        return {name: self.dimensions[name].decode(value) for name, value in stored.items()}

    def corners(self) -> list[dict[str, Any]]:
        """Return settings in which every end of a range and every choice occurs."""
        ends = {name: each.ends for name, each in self.dimensions.items()}
        most = max(map(len, ends.values()))
        return [{name: each[number % len(each)] for name, each in ends.items()} for number in range(most)]


def flags(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return settings as flags of `fit`."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    return tuple(f"--{name}={text}" for name, text in texts.items())


def _stored(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _dimension(name: str, entry: Any) -> Range | Choices:
    if name in FIXED:
        raise refuse("space", "a mapping of settings of the model, data, collector and trainer", name, "Remove it.")
    if name in COMMON:
        raise refuse("space", "a mapping of settings that may differ between trials", name, f"Use the flag --{name}.")
    if not isinstance(entry, Mapping) or not ("choices" in entry or {"low", "high"} <= entry.keys()):
        nested = isinstance(entry, Mapping) and any(isinstance(value, Mapping) for value in entry.values())
        fix = f"Write {name}.{next(iter(entry))}: " + "{low: 1, high: 5}." if nested else "Use {low: 1, high: 5}."
        raise refuse(name, "{low, high} or {choices} in the space", entry, fix)
    unknown = next((key for key in entry if key not in KEYS), None)
    if unknown is not None:
        close = get_close_matches(str(unknown), KEYS, n=1)
        fix = f"Did you mean {close[0]}?" if close else "Remove it."
        raise refuse(name, f"described by {', '.join(KEYS)} in the space", unknown, fix)
    return _choices(name, entry) if "choices" in entry else _range(name, entry)


def _exact(value: float) -> Decimal:
    return Decimal(str(value))  # 0.3 is not a multiple of 0.1 in floating point


def _choices(name: str, entry: Mapping[str, Any]) -> Choices:
    values = entry["choices"]
    if len(entry) > 1:
        raise refuse(name, "either a range or choices in the space", dict(entry), "Remove one of them.")
    if not isinstance(values, list) or not values:
        raise refuse(f"{name}.choices", "a list of values", values, "Use choices: [64, 256], for example.")
    for value in values:
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:  # bytes or a set, which YAML has
            expected = "a list of numbers, strings, lists and mappings"
            raise refuse(f"{name}.choices", expected, value, "Write the value as text.") from error
    return Choices(tuple(values))


def _range(name: str, entry: Mapping[str, Any]) -> Range:
    for key in ("low", "high", "step"):
        if key in entry and as_float(entry[key]) is None:
            raise refuse(f"{name}.{key}", "a number", entry[key], "Use choices for values that are not numbers.")
        require_float(f"{name}.{key}", entry.get(key, 0))
    found = Range(entry["low"], entry["high"], require_bool(f"{name}.log", entry.get("log", False)), entry.get("step"))
    if not found.low <= found.high:
        raise refuse(f"{name}.low", f"at most high, which is {found.high}", found.low, "Exchange them.")
    if found.log and not found.low > 0:
        raise refuse(f"{name}.low", "greater than 0 if log is true", found.low, "Use a larger value, or remove log.")
    if found.step is not None and (found.log or not found.step > 0):
        got = "both" if found.log else found.step
        raise refuse(f"{name}.step", "greater than 0 and used without log", got, "Remove step or log.")
    if found.step is not None:
        _check_step(name, _exact(found.high) - _exact(found.low), found.step)
    return found


def _check_step(name: str, width: Decimal, step: float) -> None:
    """Raise `UsageError` if a range does not consist of 1 to MOST_STEPS whole steps."""
    if not 1 <= width / _exact(step) <= MOST_STEPS:
        expected = f"between (high - low) / {MOST_STEPS:,} and high - low"
        raise refuse(f"{name}.step", expected, step, "Use another step, or remove it.")
    if width % _exact(step):
        raise refuse(f"{name}.step", "a divisor of high - low", step, "Use another step, or another high.")

"""A search space: the settings that a sweep varies, and their values."""

import json
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from td3_lightning.errors import UsageError, import_extra, one_line, refuse

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

FIXED = ("config", "name", "ckpt_path", "help", "print_config")  # flags of `fit` that the sweep itself decides
COMMON = ("checkpoint.monitor", "checkpoint.mode", "trainer.default_root_dir")  # settings that all trials share


class Space:
    """The settings that a sweep varies.

    Args:
        entries: For each setting, {low, high} with optional log and step, or {choices}. A range of integers has
            integers as ends.

    Raises:
        UsageError: An entry is not valid, or Optuna is missing.
    """

    def __init__(self, entries: Mapping[str, Any]) -> None:
        if not isinstance(entries, Mapping) or not entries:
            raise refuse("space", "a mapping of settings", entries, "Use model.actor_lr: {low: 1e-5, high: 1e-3}.")
        self.entries = entries
        self.dimensions = {str(name): _dimension(str(name), entry) for name, entry in entries.items()}

    def suggest(self, trial: "Trial") -> dict[str, Any]:
        """Return the settings of a trial. A value that the trial already has is kept."""
        for name, each in self.dimensions.items():
            suggest: Any = getattr(trial, f"suggest_{type(each).__name__.removesuffix('Distribution').lower()}")
            suggest(name, **each._asdict())
        return self.decode(trial.params)

    def decode(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a trial, given its parameters in Optuna's form: choices are JSON."""
        choices = {name for name in stored if hasattr(self.dimensions[name], "choices")}
        return {name: json.loads(value) if name in choices else value for name, value in stored.items()}

    def corners(self) -> list[dict[str, Any]]:
        """Return settings in which every end of a range and every choice occurs."""
        dimensions: Mapping[str, Any] = self.dimensions
        ends = {name: getattr(each, "choices", None) or (each.low, each.high) for name, each in dimensions.items()}
        most = max(map(len, ends.values()))
        return [self.decode({name: each[number % len(each)] for name, each in ends.items()}) for number in range(most)]


def flags(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return settings as flags of `fit`."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    return tuple(f"--{name}={text}" for name, text in texts.items())


def import_optuna() -> Any:
    """Import Optuna, and reduce its messages.

    Raises:
        UsageError: It is not installed.
    """
    optuna = import_extra("optuna", "sweep --space", "sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def _dimension(name: str, entry: Any) -> "BaseDistribution":
    """Return the distribution of a setting."""
    if name in (*FIXED, *COMMON):
        raise refuse("space", "a mapping of settings that may differ between trials", name, "Remove it.")
    kinds = import_optuna().distributions
    expected = "{low, high} with optional log and step, or {choices} in the space"
    fix = "Use model.actor_lr: {low: 1e-5, high: 1e-3}, for example."
    try:
        if "choices" in entry:
            encoded = {**entry, "choices": [json.dumps(value) for value in entry["choices"]]}
            return kinds.CategoricalDistribution(**encoded)  # type: ignore[no-any-return]
        numbers = (entry.get("low"), entry.get("high"), entry.get("step") or 1)
        kind = kinds.IntDistribution if all(type(each) is int for each in numbers) else kinds.FloatDistribution
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a step that does not divide its range
            return kind(**entry)  # type: ignore[no-any-return]
    except (TypeError, ValueError, ArithmeticError, AttributeError, Warning) as error:
        raise UsageError(f"{name} must be {expected}, got {entry} ({one_line(error).rstrip('.')}). {fix}") from error

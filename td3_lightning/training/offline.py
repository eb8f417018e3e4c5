"""Checks of a run that learns from a dataset alone."""

import inspect
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_warn

from td3_lightning.errors import UsageError
from td3_lightning.schedules import Schedule
from td3_lightning.training.evaluation import StopWhenSolved
from td3_lightning.training.policy_checkpoint import PolicyCheckpoint


def check_offline(trainer: L.Trainer, schedules: dict[str, Schedule]) -> None:
    """Check a run that takes no environment steps.

    Args:
        trainer: Trainer of the run.
        schedules: Settings that are schedules and not constant.

    Raises:
        UsageError: A callback requires training episodes, or a setting requires environment steps.
    """
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it without a type
    for each in callbacks:
        if isinstance(each, PolicyCheckpoint | StopWhenSolved):
            raise UsageError(
                f"data.offline must be false with {type(each).__name__}, which requires training episodes, got true. "
                "Remove the callback."
            )
    for name, schedule in schedules.items():
        raise UsageError(
            f"{name} must be a number if data.offline is true, because env_steps do not grow, got "
            f"{schedule}. Use a number."
        )


def warn_of_unused(kind: type, **settings: Any) -> None:
    """Warn of settings of the Collector that an offline run does not use.

    Args:
        kind: Class of the Collector, whose constructor has the defaults.
        settings: Values of its settings.
    """
    defaults = inspect.signature(kind).parameters
    unused = [f"collector.{name}" for name, value in settings.items() if value != defaults[name].default]
    if unused:
        has = "has" if len(unused) == 1 else "have"
        rank_zero_warn(f"{' and '.join(unused)} {has} no effect with data.offline, which takes no environment steps.")

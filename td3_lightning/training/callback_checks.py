"""Callbacks of Lightning that TD3 does not support."""

import re
from collections.abc import Sequence

from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    SpikeDetection,
    StochasticWeightAveraging,
    WeightAveraging,
)

from td3_lightning.errors import UsageError
from td3_lightning.training.weight_averaging import AveragedWeights

_OPTIMIZES = "it requires automatic optimization, and TD3 steps its own optimizers. Remove it"

UNSUPPORTED = {
    BatchSizeFinder: _OPTIMIZES,
    GradientAccumulationScheduler: _OPTIMIZES,
    LearningRateFinder: _OPTIMIZES,
    BackboneFinetuning: "TD3 has no backbone to unfreeze. Remove it",
    ModelPruning: "checkpoints do not contain its masks. Remove it",
    SpikeDetection: "it requires a single loss, and TD3 has two. Remove it",
    StochasticWeightAveraging: "it requires a single optimizer, and TD3 has two. Use td3_lightning.AveragedWeights",
}

_WITHIN_EPOCHS = re.compile("'every_n_train_steps': [1-9]|'train_time_interval': (?!None)")  # in a state_key


def check_callbacks(callbacks: Sequence[Callback], collector: Callback) -> None:
    """Raise `UsageError` if the callbacks of a run do not work with TD3, or not in their order."""
    for callback in callbacks:
        check_callback(callback)
    if any(isinstance(each, AveragedWeights) for each in callbacks[callbacks.index(collector) :]):
        raise UsageError(
            "AveragedWeights must precede the Collector in the callbacks, got the reverse. Change their order."
        )


def check_callback(callback: Callback) -> None:
    """Raise `UsageError` if a callback does not work with TD3."""
    name = type(callback).__name__
    for kind, why in UNSUPPORTED.items():
        if isinstance(callback, kind):
            raise UsageError(f"trainer.callbacks must not contain {name}, because {why}.")
    if isinstance(callback, WeightAveraging) and not isinstance(callback, AveragedWeights):
        raise UsageError(
            f"trainer.callbacks must not contain {name}, because a run that is interrupted during an evaluation "
            "would resume differently. Use td3_lightning.AveragedWeights."
        )
    _check_save_interval(callback)


def _check_save_interval(callback: Callback) -> None:
    """Raise `UsageError` if a ModelCheckpoint saves after a number of optimizer steps or after a time.

    Lightning counts the steps of all optimizers, skips intervals that an update steps over, names all files of an epoch
    after its evaluation, and ignores the time with manual optimization.
    """
    if isinstance(callback, ModelCheckpoint) and _WITHIN_EPOCHS.search(callback.state_key):
        raise UsageError(
            f"{type(callback).__name__} must not have every_n_train_steps or train_time_interval, which do not count "
            "environment steps. Use every_n_epochs."
        )

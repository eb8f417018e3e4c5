"""Checks of the settings that Lightning accepts and TD3 does not support."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    SpikeDetection,
    WeightAveraging,
)

from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.file_names import check_file_name
from td3_lightning.errors import UsageError, check_at_least
from td3_lightning.reporting.run_dir import run_dir_of
from td3_lightning.training.collector import Collector
from td3_lightning.training.weight_averaging import AveragedWeights

# Trainer's settings for modules that Lightning optimizes, with their defaults, and what there is for them.
REPLACED_BY = {
    "gradient_clip_val": (None, "--model.max_grad_norm"),
    "accumulate_grad_batches": (1, "a larger --data.batch_size"),
    "barebones": (False, "--trainer.logger false and --trainer.enable_progress_bar false"),
    "overfit_batches": (0.0, "--trainer.limit_train_batches for short epochs, as batches are drawn anew"),
}


# How often there is an evaluation, which is not never.
VALIDATION_INTERVALS = ("check_val_every_n_epoch", "val_check_interval")


# Lightning's callbacks that have no place here, and why.
OPTIMIZES = "it is for optimizers that Lightning steps, and TD3's update steps its own; leave it out"


UNSUPPORTED_CALLBACKS = {
    BatchSizeFinder: OPTIMIZES,
    GradientAccumulationScheduler: OPTIMIZES,
    LearningRateFinder: OPTIMIZES,
    BackboneFinetuning: "TD3 has no backbone to thaw by and by; leave it out",
    ModelPruning: "a resumed run would not be the same, as no checkpoint holds its masks; leave it out",
    OnExceptionCheckpoint: "a run that fails saves last.ckpt by itself; leave it out",
    SpikeDetection: "it looks at one loss of an update, and TD3 has two; leave it out",
}


def check_trainer(settings: Mapping[str, Any]) -> None:
    """Raises `UsageError` for what the Trainer takes and this package cannot use."""
    for name, (default, instead) in REPLACED_BY.items():
        if settings[name] != default:
            raise UsageError(f"trainer.{name} does nothing here, but {settings[name]} came; give {instead}.")
    if settings["log_every_n_steps"] is not None:
        check_at_least("trainer.log_every_n_steps", settings["log_every_n_steps"], 0)
    for name in VALIDATION_INTERVALS:
        if isinstance(settings[name], int | float) and settings[name] <= 0:
            raise UsageError(
                f"trainer.{name} is above 0, but {settings[name]} came; to evaluate never, give "
                "--trainer.limit_val_batches 0."
            )


def check_callbacks(callbacks: Iterable[Callback]) -> None:
    """Raise `UsageError` if a user's callback does not work with TD3."""
    for callback in callbacks:
        _check_callback(callback)
        if isinstance(callback, ModelCheckpoint):
            _check_model_checkpoint(callback)


def _check_callback(callback: Callback) -> None:
    name = type(callback).__name__
    for kind, why in UNSUPPORTED_CALLBACKS.items():
        if isinstance(callback, kind):
            raise UsageError(f"trainer.callbacks has {name}, but {why}.")
    if isinstance(callback, WeightAveraging) and not isinstance(callback, AveragedWeights):
        raise UsageError(
            f"trainer.callbacks has {name}, but with it a run that is stopped in an evaluation is not the same run; "
            "give td3_lightning.AveragedWeights."
        )
    if isinstance(callback, Collector):
        raise UsageError(
            "trainer.callbacks has a Collector, but there is one already; leave it out, and set that one, such as "
            "--collector.warmup_steps 1000."
        )


def _check_model_checkpoint(callback: ModelCheckpoint) -> None:
    if callback._every_n_train_steps or callback._train_time_interval is not None:
        raise UsageError(
            f"trainer.callbacks has {type(callback).__name__} with every_n_train_steps or train_time_interval, "
            "which Lightning counts in Adam steps, or not at all; give it every_n_epochs."
        )
    if not isinstance(callback, BestCheckpoint):
        check_file_name("trainer.callbacks.filename", callback)


def check_epochs(most: int | None, checkpoint: Mapping[str, Any], begins_stage: bool) -> None:
    """A run that is over and goes on is told so later, when it is back; a stage that begins wants an epoch to train."""
    done = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    if most is not None and 0 <= most < done + begins_stage:
        raise UsageError(
            f"trainer.max_epochs is {most}, but the checkpoint has {done} behind it, and epochs count on, in another "
            "stage of training too; give more, or an earlier checkpoint."
        )


def check_stage_before(checkpoint: Path, files: list[Path]) -> None:
    if not checkpoint.exists():
        raise UsageError(
            f"ckpt_path of {' and '.join(map(str, files))} must be a checkpoint, got {checkpoint}, which does not "
            "exist. Train the stage before it first, or give --ckpt_path and --data.empty_replay true."
        )


def check_own_stage(checkpoint: Path, name: str, files: list[Path]) -> None:
    if not has_name(run_dir_of(checkpoint), name):
        raise UsageError(
            f"{' and '.join(map(str, files))} begins a stage of training, and {checkpoint} lies in no folder of a run "
            f"named {name}; type --data.empty_replay true to begin the stage there, or false to go on with that run."
        )


def has_name(run: Path | None, name: str) -> bool:
    folders = Path(name).parts
    return run is not None and run.parent.parts[len(run.parent.parts) - len(folders) :] == folders

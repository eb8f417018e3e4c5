"""Checks of the settings that Lightning accepts and TD3 does not support."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.callbacks import Callback, OnExceptionCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.algorithm.td7 import TD7
from td3_lightning.checkpointing.io import AtomicCheckpointIO
from td3_lightning.cli.stage import RUNS
from td3_lightning.errors import UsageError, require_int
from td3_lightning.reporting.run_dir import run_dir_of
from td3_lightning.training.collector import Collector
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.run_checks import check_callback

EPOCHS = "--trainer.max_epochs: an epoch has data.steps_per_epoch environment steps, and Lightning counts Adam's steps"

# Trainer settings that have no or another effect with manual optimization: the default and the replacement.
REPLACED_BY = {
    "max_steps": (-1, EPOCHS),
    "min_steps": (None, EPOCHS.replace("max", "min")),
    "gradient_clip_val": (None, "--model.max_grad_norm"),
    "accumulate_grad_batches": (1, "a larger --data.batch_size"),
    "barebones": (False, "--trainer.logger false and --trainer.enable_progress_bar false"),
    "overfit_batches": (0.0, "--trainer.limit_train_batches for short epochs"),
}

# Settings for the time between evaluations. They must be above 0.
VALIDATION_INTERVALS = ("check_val_every_n_epoch", "val_check_interval")


def check_trainer(settings: Mapping[str, Any]) -> None:
    """Raise `UsageError` for Trainer settings that TD3 does not support."""
    for name, (default, instead) in REPLACED_BY.items():
        if settings[name] != default:
            raise UsageError(f"trainer.{name} must be {default}, got {settings[name]}. Use {instead}.")
    if settings["log_every_n_steps"] is not None:
        require_int("trainer.log_every_n_steps", settings["log_every_n_steps"], least=0)
    for name in VALIDATION_INTERVALS:
        if isinstance(settings[name], int | float) and settings[name] <= 0:
            raise UsageError(
                f"trainer.{name} must be above 0, got {settings[name]}. Use --trainer.limit_val_batches 0 to disable "
                "evaluation."
            )


def check_callbacks(callbacks: Iterable[Callback]) -> None:
    """Raise `UsageError` if a user's callback does not work with TD3."""
    for callback in callbacks:
        check_callback(callback)
        if isinstance(callback, OnExceptionCheckpoint):
            raise UsageError(
                f"trainer.callbacks must not contain {type(callback).__name__}, because a run that fails already saves "
                "last.ckpt. Remove it."
            )
        if isinstance(callback, Collector):
            raise UsageError(
                "trainer.callbacks must not contain a Collector, because the command line adds one. Remove it and use "
                "the collector settings, for example --collector.warmup_steps 1000."
            )


def with_checkpoint_io(plugins: Sequence[Any]) -> list[Any]:
    """Return the plugins of the user, with `AtomicCheckpointIO` if none of them is a CheckpointIO.

    Raises:
        UsageError: A plugin writes checkpoints in the background.
    """
    if any(isinstance(plugin, AsyncCheckpointIO) for plugin in plugins):
        raise UsageError(
            "trainer.plugins must not contain AsyncCheckpointIO, because a run must not continue before last.ckpt is "
            "complete. Remove it. A save is fast because it writes only the new rows of the replay."
        )
    has_io = any(isinstance(plugin, CheckpointIO) for plugin in plugins)
    return [*plugins] if has_io else [*plugins, AtomicCheckpointIO()]


def require_checkpoint(command: str, given: object) -> None:
    """Raise `UsageError` if a command that loads a checkpoint has none."""
    if command not in ("fit", "import") and not given:
        raise UsageError(
            f"{command} requires --ckpt_path, for example lightning_logs/car/version_0/checkpoints/last.ckpt."
        )


def export_target(format: str, output: str | None, files: str | None) -> str:
    """Return `output`, or `files` for the format "weights"; raise `UsageError` for a path that does not fit."""
    name, example = ("files", "models/car") if format == "weights" else ("output", f"car.{format}")
    target, other = (files, output) if format == "weights" else (output, files)
    if target is None or other is not None:
        raise UsageError(f"export --format {format} requires --{name} alone, for example --{name} {example}.")
    path = Path(target)
    if format != "weights" and path.suffix != f".{format}":
        stem = path.stem.lstrip(".") or "car"
        raise UsageError(f"output must end in .{format}, got {path.name}. Use {stem}.{format}.")
    return target


def check_pixel_encoder(data: ReplayData, model: TD3) -> None:
    """Raise `UsageError` if the observations are images and the model has no encoder for them."""
    if data.pixels is not None and model.hparams["encoder"] is None:
        if isinstance(model, TD7):
            raise UsageError("data.pixels requires TD3 with model.encoder, got TD7. Use --model td3_lightning.TD3.")
        raise UsageError(
            "data.pixels requires model.encoder, got none. Use for example --model.encoder td3_lightning.Convolutions."
        )


def check_resume(trainer: L.Trainer, data: ReplayData, checkpoint: Mapping[str, Any]) -> None:
    """Raise `UsageError` if the Trainer cannot continue a checkpoint."""
    if trainer.fast_dev_run:  # type: ignore[attr-defined]  # Lightning sets it without a type
        raise UsageError(
            "trainer.fast_dev_run must be false to resume a checkpoint, got true. Remove it, or remove --ckpt_path."
        )
    done = int(checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])
    most = trainer.max_epochs
    least = done + data.empty_replay  # a new stage has at least one epoch
    if most is not None and 0 <= most < least:
        raise UsageError(
            f"trainer.max_epochs must be at least {least}, got {most}. The checkpoint has completed {done} epochs, and "
            "a new stage continues the count. Increase it or use an earlier checkpoint."
        )


def check_stage_before(checkpoint: Path, files: list[Path]) -> None:
    """Raise `UsageError` if the checkpoint of the previous stage does not exist."""
    if not checkpoint.exists():
        raise UsageError(
            f"ckpt_path of {' and '.join(map(str, files))} must be a checkpoint, got {checkpoint}, which does not "
            "exist. Train the previous stage first, or use --ckpt_path and --data.empty_replay true."
        )


def check_own_stage(checkpoint: Path, name: str, files: list[Path]) -> None:
    """Raise `UsageError` if a file starts a new stage and the checkpoint belongs to a run with another name."""
    if not has_name(run_dir_of(checkpoint), name):
        raise UsageError(
            f"{' and '.join(map(str, files))} starts a new stage, so ckpt_path must belong to a run named {name}, got "
            f"{checkpoint}. Use --data.empty_replay true to start the stage from it, or false to resume that run."
        )


def has_name(run: Path | None, name: str) -> bool:
    """Return whether a run folder belongs to a run with this name. The folder of all runs may have been moved."""
    if run is None:
        return False
    folders, parts = Path(name).parts, run.parent.parts
    begins = [place + 1 for place, part in enumerate(parts) if part == RUNS] or [len(parts) - len(folders)]
    return any(parts[begin:] == folders for begin in begins)

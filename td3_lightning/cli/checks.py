"""Checks of the settings that Lightning accepts and TD3 does not support."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import lightning as L
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import distributed

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.checkpointing.io import AtomicCheckpointIO
from td3_lightning.errors import UsageError
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


def check_trainer(settings: Mapping[str, Any]) -> None:
    """Raise `UsageError` for Trainer settings that TD3 does not support."""
    for name, (default, instead) in REPLACED_BY.items():
        if settings[name] != default:
            raise UsageError(f"trainer.{name} must be {default}, got {settings[name]}. Use {instead}.")


def check_callbacks(callbacks: Iterable[Callback]) -> None:
    """Raise `UsageError` if a user's callback does not work with TD3."""
    for callback in callbacks:
        check_callback(callback)
        if isinstance(callback, Collector):
            raise UsageError(
                "trainer.callbacks must not contain a Collector, because the command line adds one. Remove it and use "
                "the collector settings, for example --collector.warmup_steps 1000."
            )


def with_checkpoint_io(plugins: Sequence[Any]) -> list[Any]:
    """Return the plugins of the user, with `AtomicCheckpointIO` if none of them is a CheckpointIO.

    Args:
        plugins: The plugins of the user.

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


def check_pixel_encoder(data: ReplayData, model: TD3) -> None:
    """Raise `UsageError` if the observations are images and the model has no encoder for them."""
    if data.pixels is not None and model.hparams.get("encoder") is None:
        raise UsageError(
            "data.pixels requires TD3 with model.encoder, got none. Use --model.encoder td3_lightning.Convolutions."
        )


def check_processes(trainer: L.Trainer) -> None:
    """Raise `UsageError` if a launcher has started more processes than the Trainer counts.

    Each of them would train alone, and only the first would write logs.
    """
    by_torchrun = distributed.is_available() and TorchElasticEnvironment.detect()
    by_slurm = "SLURM_PROCID" in os.environ
    started = int(os.environ.get("WORLD_SIZE" if by_torchrun else "SLURM_STEP_NUM_TASKS", "1"))
    if (by_torchrun or by_slurm) and started > trainer.world_size:
        raise UsageError(
            f"trainer.devices times trainer.num_nodes must be {started}, the number of processes of this run, got "
            f"{trainer.world_size}. Set both, or start independent runs with env -u SLURM_PROCID -u SLURM_NTASKS."
        )

"""Checks of the settings that Lightning accepts and TD3 does not support."""

import os
from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch import distributed

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.errors import UsageError
from td3_lightning.training.data_module import ReplayData

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

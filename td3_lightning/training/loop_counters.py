"""Public loop counters of Lightning that several packages read.

`checkpointing/loop_state.py` holds the counters that only fault tolerance reads and writes.
"""

from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_warn

from td3_lightning.errors import UsageError


def updates_in_epoch(trainer: L.Trainer) -> int:
    """Return the updates that a run has done in its current epoch when `fit` starts; 0 unless it was resumed."""
    loop = trainer.fit_loop
    return int(loop.epoch_loop.batch_progress.current.ready) if loop.restarted_mid_epoch else 0


def completed_epochs(checkpoint: Mapping[str, Any]) -> int:
    """Return the number of epochs that a checkpoint has completed."""
    return int(checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])


def check_is_between_updates(trainer: L.Trainer) -> None:
    """Raise `UsageError` if an update is running, whose state cannot be saved; warn if an exception ended it."""
    updates: Any = trainer.fit_loop.epoch_loop.batch_progress
    if trainer.interrupted:
        if updates.current.started > updates.current.processed:
            rank_zero_warn(
                f"A checkpoint was saved within update {updates.total.ready:,}, which an exception ended. A run "
                "resumed from it differs from an uninterrupted one. Use an earlier checkpoint for an exact resume."
            )
    elif updates.current.ready > updates.current.processed:
        raise UsageError(
            f"A checkpoint must be saved between two updates, got a save within update {updates.total.ready:,}. Use "
            "on_train_batch_end."
        )

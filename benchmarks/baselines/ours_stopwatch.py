"""Callbacks that connect the stopwatch of a measured process to `td3_lightning fit`."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from benchmarks.clock import stopwatch


class ConnectStopwatch(Callback):
    """Connect the stopwatch to the run."""

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Register the update count and the replay buffer."""
        replay = trainer.datamodule.replay  # type: ignore[attr-defined]  # Lightning sets it without a type
        stopwatch().watch(lambda: pl_module.updates, replay.transition_bytes)


class CountUpdates(ConnectStopwatch):
    """Advance the stopwatch by the steps of the warm-up, then at every update."""

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Register the update count and the replay buffer, and advance by the warm-up."""
        super().on_train_start(trainer, pl_module)
        for _ in range(pl_module.env_steps):
            stopwatch().tick()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Advance by one update."""
        stopwatch().tick()

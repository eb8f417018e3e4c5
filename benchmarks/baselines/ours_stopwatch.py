"""Callback that connects the stopwatch of a measured process to `td3_lightning fit`."""

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

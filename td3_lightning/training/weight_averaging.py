"""Exponential moving average of the weights for evaluation and checkpoints."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import get_ema_multi_avg_fn

from td3_lightning.errors import require_float
from td3_lightning.training.callback_owner import check_owner


class AveragedWeights(WeightAveraging):
    """Evaluate and save an exponential moving average of the weights. Training itself is unchanged.

    After `fit`, the agent has the average, which `validate`, `act` and `write_policy` use. The `state_dict` of a
    checkpoint contains it as well. A resumed run, and another `fit` of this agent with this callback, train the trained
    weights. Unlike with Lightning's `WeightAveraging`, runs that stop during an evaluation
    or within an epoch resume exactly. To save time, the average changes at every tenth update only. This callback must
    precede the Collector, so that the average includes the last update before a stop or a failure of an environment.

    Args:
        decay: Weight of the old average per update, in [0, 1). The average covers about `1 / (1 - decay)` updates.

    Raises:
        UsageError: The decay is out of range.
    """

    UPDATE_INTERVAL = 10

    def __init__(self, decay: float = 0.9999) -> None:
        decay = require_float("decay", decay, least=0, below=1, fix="Use 0.9999, for example.")
        mean = get_ema_multi_avg_fn(decay**self.UPDATE_INTERVAL)  # type: ignore[no-untyped-call]
        super().__init__(use_buffers=False, multi_avg_fn=mean)  # buffers are copied, because integers have no average
        self._swapped = False  # the agent has the average, and this callback the trained weights

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Create the average."""
        if stage == "fit" and self._swapped:
            check_owner(self, pl_module)
            self._swap(pl_module)
        trainer.precision_plugin.convert_module(pl_module)  # so that the average has the same type
        self._device = trainer.strategy.root_device  # Lightning 2.6 uses the module's, which is still the CPU
        super().setup(trainer, pl_module, stage)
        if stage == "fit":  # the callback may have been used by another Trainer; a checkpoint restores the step later
            self.load_state_dict({"latest_update_step": 0})

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the average at every tenth update."""
        if pl_module.updates % self.UPDATE_INTERVAL == 0:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Do nothing: the average changes per update, not per epoch."""

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Swap in the average for an evaluation during `fit`. Other commands load the average already."""
        if trainer.state.fn == "fit":
            self._swap(pl_module)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Swap the trained weights back."""
        if trainer.state.fn == "fit" and self._swapped:
            self._swap(pl_module)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Swap the trained weights back after a failed evaluation."""
        if trainer.validating or trainer.sanity_checking:  # the agent keeps the average of its last fit
            self.on_validation_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep the trained weights, unlike Lightning, because the last checkpoint is saved later."""

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave the average in the agent."""
        self._swap(pl_module)

    def _swap(self, pl_module: L.LightningModule) -> None:
        self._swap_models(pl_module)
        self._swapped = not self._swapped

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore the average and the trained weights for `fit`. Other commands load the average only."""
        if trainer.state.fn == "fit":
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the average and the trained weights, also during an evaluation or after `fit`, when they are swapped."""
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if self._swapped:
            own, mean = checkpoint["state_dict"], checkpoint["current_model_state"]
            checkpoint["state_dict"], checkpoint["current_model_state"] = mean, own

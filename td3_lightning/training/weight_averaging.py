"""Running mean of the parameters, used for evaluation and for the best checkpoint."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, WeightAveraging
from torch.optim.swa_utils import get_ema_multi_avg_fn

from td3_lightning.errors import UsageError
from td3_lightning.training.collector import Collector
from td3_lightning.training.evaluation import StopWhenSolved


class AveragedWeights(WeightAveraging):
    """Evaluates and saves a running mean of the weights, while the weights themselves train on as they would without.

    A checkpoint's `state_dict` is the mean, which `test` and `act` then use; a resumed run goes on with both. It is
    Lightning's, made exact where a run is stopped in an evaluation or ends within an epoch. The mean is brought up to
    date in every tenth update, as that takes 0.4 ms of a small agent's. Stands before the Collector in the list of
    callbacks, as an update after which a run is stopped or an environment fails counts in the mean.

    Args:
        decay: What is left of an old mean after an update, in [0, 1): it is over the last `1 / (1 - decay)` or so.
    """

    EVERY = 10

    def __init__(self, decay: float = 0.9999) -> None:
        if decay is None or not 0 <= decay < 1:  # null on the command line
            raise UsageError(f"decay is in [0, 1), but {decay} came; give one such as 0.9999.")
        mean = get_ema_multi_avg_fn(decay**self.EVERY)  # type: ignore[no-untyped-call]
        super().__init__(use_buffers=False, multi_avg_fn=mean)  # these are copied: a mean of whole numbers is none
        self._evaluating = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Makes the mean; raises `UsageError` beside callbacks that would miss it or come before it."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(each, Collector) for each in callbacks[: callbacks.index(self)]):
            raise UsageError("AveragedWeights came after the Collector in the callbacks; put it before.")
        if any(isinstance(each, StopWhenSolved) for each in callbacks):
            raise UsageError(
                "StopWhenSolved plays with the weights themselves, but AveragedWeights came too, whose mean is what a "
                "checkpoint would hold; take EarlyStopping with a stopping_threshold, or leave one of them out."
            )
        trainer.precision_plugin.convert_module(pl_module)  # or the mean would be of another type
        super().setup(trainer, pl_module, stage)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Moves the mean to the weights."""
        if pl_module.updates % self.EVERY == 0:
            assert self._average_model is not None
            self._average_model.update_parameters(pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Does nothing, since the updates are what counts."""

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Puts the mean in the place of the weights, in training; what is judged later is as it is."""
        if trainer.state.fn == "fit":
            super().on_validation_epoch_start(trainer, pl_module)
            self._evaluating = True

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Puts the weights back."""
        if self._evaluating:
            super().on_validation_epoch_end(trainer, pl_module)
            self._evaluating = False

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Puts the weights back after an evaluation that failed."""
        self.on_validation_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leaves the weights in place, unlike Lightning's, since the last checkpoint comes after it."""

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Takes both back where training goes on; what is judged is the mean."""
        if trainer.state.fn == "fit":
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Saves both, each under its name in the middle of an evaluation too."""
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if self._evaluating:
            own, mean = checkpoint["state_dict"], checkpoint["current_model_state"]
            checkpoint["state_dict"], checkpoint["current_model_state"] = mean, own

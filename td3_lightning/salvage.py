"""What is saved of a run whose environment fails."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info

from td3_lightning.errors import EnvError, LearnerError, RunError, UsageError
from td3_lightning.module import TD3
from td3_lightning.stopping import evaluate_first, evaluation_is_due, save_last


class Salvage(Callback):
    """Saves `last.ckpt` when an environment fails, or when anything else does in an evaluation or between two epochs.

    The run can be resumed from there, once that is mended. Where a training environment failed, the episodes that were
    running count as truncated, and new ones begin. A process among several saves nothing, as it cannot do so alone.
    Stands before the Collector in the list of callbacks.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training = False  # between a run's restoration and its end
        self._epoch_over = False
        self._salvaging = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """From here on there is something to save."""
        self._training, self._epoch_over = True, False

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """From here on there are updates, in whose middle there is nothing to save."""
        self._epoch_over = False

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Other callbacks may look at the evaluation now."""
        self._epoch_over = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """There is nothing any more that is not saved."""
        self._training = False

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Saves, if it was an environment, or no update was under way."""
        training, self._training = self._training, False
        in_env = isinstance(exception, EnvError)
        elsewhere = isinstance(exception, Exception) and not isinstance(exception, LearnerError)
        wanted = in_env or (elsewhere and (trainer.validating or self._epoch_over))
        begun = training and isinstance(pl_module, TD3) and pl_module.env_steps > 0
        if not (wanted and begun) or trainer.world_size > 1:
            return
        if in_env and not trainer.validating:
            trainer.datamodule.envs.abandon()  # type: ignore[attr-defined]  # set without a type
        self._salvaging = True
        try:
            said = save_last(trainer)
        except (OSError, RunError, UsageError) as error:
            said = f"this state could not be saved: {error}"
        self._salvaging = False
        what = "An environment failed" if in_env else "The run failed"
        rank_zero_info(f"{what} after {pl_module.env_steps:,} env_steps: {said}.")

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Has a run that failed right before an evaluation begin with that when it is resumed."""
        loops = checkpoint["loops"]["fit_loop"]
        batches, episodes = loops["epoch_loop.batch_progress"], loops["epoch_loop.val_loop.batch_progress"]
        after_an_update = batches["current"]["processed"] > batches["current"]["completed"]
        if self._salvaging and not trainer.validating and after_an_update and evaluation_is_due(trainer):
            for counts in (batches["current"], batches["total"]):
                counts["completed"] = counts["processed"]
            evaluate_first(episodes, episodes["total"]["completed"])

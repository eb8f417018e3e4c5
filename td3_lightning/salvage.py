"""What is saved of a run whose environment fails."""

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from td3_lightning.checkpoint import _last_path
from td3_lightning.errors import EnvError, RunError
from td3_lightning.module import TD3


class Salvage(Callback):
    """Saves `last.ckpt` when an environment fails: all that was stored before.

    The run can be resumed from there, once the environment is mended; the episodes that were running count as
    truncated, and new ones begin. A process among several saves nothing, as it cannot do so alone. Stands before the
    Collector in the list of callbacks.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training = False  # between a run's restoration and its end

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """From here on there is something to save."""
        self._training = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """There is nothing any more that is not saved."""
        self._training = False

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Saves, if it was an environment."""
        training, self._training = self._training, False
        path = _last_path(trainer)
        wanted = training and isinstance(exception, EnvError) and isinstance(pl_module, TD3) and pl_module.env_steps > 0
        if not wanted or path is None or trainer.world_size > 1:
            return
        if not trainer.validating:
            trainer.datamodule.envs.abandon()  # type: ignore[attr-defined]  # set without a type
        try:
            trainer.save_checkpoint(path)
        except (OSError, RunError) as error:
            rank_zero_warn(f"The run's last state could not be saved: {error}")
        else:
            rank_zero_info(f"{path} holds the run up to {pl_module.env_steps:,} env_steps, and goes on from there.")

"""Callback that saves and exits on SIGINT, SIGTERM and SIGUSR1."""

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.checkpointing.last import LastCheckpoint
from td3_lightning.checkpointing.loop_state import evaluation_is_due, force_evaluation_on_resume
from td3_lightning.errors import EnvError, LearnerError, RunError, UsageError
from td3_lightning.training.collector import Collector

# Exit codes. 75 tells a queue to start the job again. SIGHUP arrives when the terminal is closed.
_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGUSR1: 75}


class ExitOnSignal(SystemExit):
    """Ends the process after a signal, with the exit status that a shell expects."""


class StopOnSignal(Callback):
    """Finish the update on Ctrl-C, SIGTERM, SIGHUP or SIGUSR1, save `last.ckpt` and end the process.

    The exit status is 130, 143, 129 or 75; the last one tells a queue to start the job again. The resumed run is the
    same run: a warm-up continues where it stopped, an evaluation starts again. A second Ctrl-C ends the process at
    once, with the last checkpoint that was written. A signal that the parent process set to be ignored, as nohup does
    with SIGHUP, stays ignored.
    Stands after the Collector in the list of callbacks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.received: signal.Signals | None = None  # the signal that asked to stop
        self._previous: dict[signal.Signals, Any] = {}  # the handlers that were there before
        self._collectors: list[Collector] = []
        self._alone = False  # no other rank may have had a signal

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Begins to listen, in training."""
        if stage != "fit":
            return
        self.received = None
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._collectors = [callback for callback in callbacks if isinstance(callback, Collector)]
        if any(callbacks.index(collector) > callbacks.index(self) for collector in self._collectors):
            raise UsageError("StopOnSignal came before the Collector in the callbacks; put it after.")
        if threading.current_thread() is threading.main_thread():  # the only one that may
            found = {number: signal.getsignal(number) for number in _STATUS}
            # A shell has its background jobs ignore Ctrl-C; a handler that is not Python's could not be put back.
            self._previous = {number: old for number, old in found.items() if old not in (signal.SIG_IGN, None)}
        self._listen()

    def _listen(self) -> None:
        for number in self._previous:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise ExitOnSignal(_STATUS[signal.SIGINT])
        self.received = self.received or signal.Signals(number)
        for collector in self._collectors:
            collector.stopping = True
        # Neither print nor a log may be used here: the signal may have come in the middle of one.
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, b"\nStopping after this update; Ctrl-C leaves at once.\n")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stops in the warm-up."""
        # Lightning has put a handler around ours, with which a SIGTERM at an epoch's end leaves without saving.
        self._listen()
        self._stop_if_asked(trainer, pl_module)
        self._alone = trainer.world_size == 1

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stops after the Collector's step; where an evaluation may be next, that is where to stop."""
        if self._alone and self.received is None:
            return
        if not trainer.is_last_batch and not evaluation_is_due(trainer):
            self._stop_if_asked(trainer, pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes back the episode that `on_save_checkpoint` counted as begun."""
        trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.reset_on_restart()

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Stops between the episodes of an evaluation."""
        if not trainer.sanity_checking:
            self._stop_if_asked(trainer, pl_module)

    def _stop_if_asked(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        asked = trainer.strategy.reduce_boolean_decision(self.received is not None, all=False)
        if not asked:
            return
        reason = self.received or signal.SIGTERM  # another rank's
        rank_zero_info(f"Stopped by {reason.name}: {save_last(trainer)}.")
        raise ExitOnSignal(_STATUS[reason])

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Has a run that was stopped in an evaluation evaluate again from the first episode."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
        current, total = progress["current"], progress["total"]
        if trainer.validating and current["ready"] > current["completed"]:
            force_evaluation_on_resume(progress, total["completed"] - current["completed"])

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Puts the signals' handlers back."""
        # Lightning does the same after this, with those that it found: ours.
        trainer._signal_connector.teardown()
        self._put_back()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Puts the signals' handlers back."""
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
        for collector in self._collectors:
            collector.stopping = False


def save_last(trainer: L.Trainer) -> str:
    """Saves where the run keeps its newest checkpoint, and says what became of it."""
    keepers = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    keepers = [keeper for keeper in keepers if keeper.dirpath is not None]
    if not keepers:
        return "nothing is saved, as the run keeps no checkpoints"
    last = next((keeper for keeper in keepers if isinstance(keeper, LastCheckpoint)), None)
    path = last.save(trainer) if last else _save_as_last(trainer, keepers[0])
    return f"{path} goes on from here" if path else "this state could not be saved"


def _save_as_last(trainer: L.Trainer, keeper: ModelCheckpoint) -> str:
    # The path is part of what is saved, so that the resumed run goes on replacing this file.
    keeper.last_model_path = keeper.last_model_path or os.path.join(str(keeper.dirpath), "last.ckpt")
    trainer.save_checkpoint(keeper.last_model_path)
    return keeper.last_model_path


class SaveOnFailure(Callback):
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
            trainer.datamodule.envs.discard_episodes()  # type: ignore[attr-defined]  # set without a type
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
            force_evaluation_on_resume(episodes, episodes["total"]["completed"])

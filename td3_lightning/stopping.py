"""Stopping a run by a signal, so that it can go on as if it had not been stopped."""

import contextlib
import math
import os
import signal
import threading
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info

from td3_lightning.best_and_last import LastCheckpoint
from td3_lightning.collector import Collector
from td3_lightning.errors import UsageError

# Exit codes. 75 tells a queue to start the job again. SIGHUP arrives when the terminal is closed.
_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGUSR1: 75}


class Stopped(SystemExit):
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
            raise Stopped(_STATUS[signal.SIGINT])
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
        raise Stopped(_STATUS[reason])

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Has a run that was stopped in an evaluation evaluate again from the first episode."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
        current, total = progress["current"], progress["total"]
        if trainer.validating and current["ready"] > current["completed"]:
            evaluate_first(progress, total["completed"] - current["completed"])

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


def evaluation_is_due(trainer: L.Trainer) -> bool:
    """Whether Lightning evaluates after this update, by the count of the epoch's or, without epochs, of all of them.

    A run that ends early, such as a solved one, is evaluated once more.
    """
    loop = trainer.fit_loop.epoch_loop
    count = loop.total_batch_idx if trainer.check_val_every_n_epoch is None else loop.batch_idx
    in_this_epoch = (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1) == 0
    ends_early = trainer.should_stop and trainer.fit_loop._can_stop_early
    return in_this_epoch and (ends_early or (count + 1) % (trainer.val_check_batch or math.inf) == 0)


def evaluate_first(progress: dict[str, Any], before: int) -> None:
    """Has a resumed run begin with an evaluation, by what a checkpoint says of its progress.

    To Lightning it is an evaluation that was stopped in its first episode, after so many episodes of others.
    """
    for counts, done in ((progress["current"], 0), (progress["total"], before)):
        counts.update(ready=done + 1, started=done + 1, processed=done, completed=done)
    progress["is_last_batch"] = False


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

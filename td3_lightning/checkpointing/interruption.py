"""Callbacks that save the run before a signal or a failure ends the process.

They read and write Lightning's loop counters. Written for Lightning 2.6. A test fails if a counter is renamed.
"""

import contextlib
import math
import os
import signal
import threading
from functools import partial
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.callbacks.timer import Interval
from lightning.pytorch.utilities import rank_zero_info

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.checkpointing.last import VALIDATION_PROGRESS, LastCheckpoint, progress_of
from td3_lightning.errors import EnvError, ExitOnSignal, LearnerError, RunError, UsageError
from td3_lightning.training.collector import Collector

TRAINING_PROGRESS = "epoch_loop.batch_progress"  # counts updates
EPOCH_PROGRESS = "epoch_progress"
# Exit codes. 75 (EX_TEMPFAIL) makes a job queue start the job again. The terminal sends SIGHUP when it closes.
_CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGUSR1": 75}
_STATUS = {getattr(signal, name): code for name, code in _CODES.items() if hasattr(signal, name)}  # Windows lacks two


class StopOnSignal(Callback):
    """Finish the update on Ctrl-C, SIGTERM, SIGHUP or SIGUSR1, save `last.ckpt` and end the process.

    The exit status is 130, 143, 129 or 75. Status 75 makes a job queue start the job again. The resumed run is
    bit-identical to an uninterrupted one: a warm-up continues where it stopped, and an evaluation is repeated. A second
    Ctrl-C ends the process at once and keeps the previous checkpoint. A signal that the parent process ignores, such as
    SIGHUP under nohup, stays ignored.

    The callback must come after the Collector. `td3_lightning.checkpointing.callbacks` returns the right order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.received: signal.Signals | None = None  # the first signal
        self._previous: dict[signal.Signals, Any] = {}  # the handlers before this run
        self._collectors: list[Collector] = []

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Install the signal handlers for training."""
        if stage != "fit":
            return
        self.received = None
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for timer in (callback for callback in callbacks if isinstance(callback, Timer)):
            timer._interval = Interval.epoch  # a resumed run cannot take the rest of an epoch that Lightning has ended
        self._collectors = [callback for callback in callbacks if isinstance(callback, Collector)]
        for collector in self._collectors:
            collector.stops_directly = partial(_can_stop_after_update, trainer)
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only here
            found = {number: signal.getsignal(number) for number in _STATUS}
            # A shell's background jobs ignore Ctrl-C. Python cannot restore a handler that is not Python's (None).
            self._previous = {number: old for number, old in found.items() if old not in (signal.SIG_IGN, None)}
        self._install_handlers()

    def _install_handlers(self) -> None:
        for number in self._previous:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise ExitOnSignal(_STATUS[signal.SIGINT])
        self.received = self.received or signal.Signals(number)
        for collector in self._collectors:
            collector.stopping = True
        # print and logging are not reentrant, and the signal may have interrupted one of them.
        with contextlib.suppress(OSError):  # the terminal may be closed
            os.write(2, b"\nStopping after this update. Press Ctrl-C again to stop at once.\n")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop if a signal arrived during the warm-up."""
        # Lightning wraps the SIGTERM handler. Its wrapper exits at the end of an epoch without saving.
        self._install_handlers()
        self._stop_if_requested(trainer)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop after the Collector's step, unless an evaluation follows, which stops at its first episode."""
        if (self.received is not None or trainer.world_size > 1) and _can_stop_after_update(trainer):
            self._stop_if_requested(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Discard the episode that `on_save_checkpoint` counted as started."""
        trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.reset_on_restart()

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Stop between the episodes of an evaluation."""
        if not trainer.sanity_checking:
            self._stop_if_requested(trainer)

    def _stop_if_requested(self, trainer: L.Trainer) -> None:
        if not trainer.strategy.reduce_boolean_decision(self.received is not None, all=False):
            return
        reason = self.received or signal.SIGTERM  # another rank received the signal
        rank_zero_info(f"Stopped by {reason.name}: {save_last(trainer)}.")
        raise ExitOnSignal(_STATUS[reason])

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Make the resumed run begin with the evaluation or the epoch that is interrupted or that follows directly."""
        if trainer.interrupted:  # the resumed run takes the update whose start failed, and evaluates on time
            updates = progress_of(checkpoint, TRAINING_PROGRESS)
            for counts in (updates["current"], updates["total"]):
                counts["ready"] = counts["started"] = counts["processed"]
        is_evaluation = trainer.validating and trainer.state.fn == "fit" and not trainer.sanity_checking
        if is_evaluation and trainer.callback_metrics.get("updates") != getattr(pl_module, "updates", None):
            progress = progress_of(checkpoint, VALIDATION_PROGRESS)  # of an evaluation that is not logged
            force_evaluation_on_resume(progress, progress["total"]["completed"] - progress["current"]["completed"])
        elif not trainer.validating and evaluation_is_due(trainer):
            start_with_evaluation(checkpoint)
        start_with_epoch(checkpoint)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Restore the previous signal handlers."""
        # Lightning restores handlers after this hook, but the ones that it found are ours.
        trainer._signal_connector.teardown()
        self._restore_handlers()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Restore the previous signal handlers."""
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
        for collector in self._collectors:
            collector.stopping = False


def _can_stop_after_update(trainer: L.Trainer) -> bool:
    """Return whether neither the end of an epoch nor an evaluation follows the current update."""
    return not trainer.is_last_batch and not evaluation_is_due(trainer)


def save_last(trainer: L.Trainer) -> str:
    """Save the newest checkpoint, and return a message that names it or says why there is none."""
    last = next((keeper for keeper in trainer.checkpoint_callbacks if isinstance(keeper, LastCheckpoint)), None)
    if last is None:
        return "no checkpoint was saved, because the run has no LastCheckpoint"
    path = last.save(trainer)
    return f"resume from {path}" if path else "the checkpoint could not be saved"


class SaveOnFailure(Callback):
    """Save `last.ckpt` when an environment fails, or when an evaluation or a callback between two epochs fails.

    The run can be resumed from there after the cause is fixed. If a training environment fails, the running episodes
    are stored as truncated, and the resumed run begins new ones. A run with several processes saves nothing, because
    the other ranks would have to take part.

    The callback must come before the Collector. `td3_lightning.checkpointing.callbacks` returns the right order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training = False  # from the restored state to the end of training

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin to save failures."""
        self._training = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop saving failures, because the final checkpoint has been written."""
        self._training = False

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Save the run if the exception left its state consistent."""
        training, self._training = self._training, False
        has_data = training and isinstance(pl_module, TD3) and pl_module.clock > 0
        in_env = isinstance(exception, EnvError)
        updates = trainer.fit_loop.epoch_loop.batch_progress.current
        is_between_updates = bool(trainer.validating) or 0 < updates.ready == updates.completed
        is_failure = isinstance(exception, Exception) and not isinstance(exception, LearnerError)
        if not has_data or trainer.world_size > 1 or not (in_env or (is_failure and is_between_updates)):
            return
        if in_env and not trainer.validating:
            trainer.datamodule.envs.discard_episodes()  # type: ignore[attr-defined]  # set without a type
        try:
            saved = save_last(trainer)
        except (OSError, RunError, UsageError) as error:
            saved = f"the checkpoint could not be saved: {error}"
        failure = "An environment failed" if in_env else "The run failed"
        rank_zero_info(f"{failure} after {pl_module.clock:,} {pl_module.clock_name}: {saved}.")


def evaluation_is_due(trainer: L.Trainer) -> bool:
    """Return whether Lightning evaluates after the current update.

    Lightning counts the updates of the epoch, or all updates if `check_val_every_n_epoch` is None. It also evaluates
    after the last update of a run that stops early.
    """
    if not trainer.enable_validation:
        return False
    loop = trainer.fit_loop.epoch_loop
    count = loop.total_batch_idx if trainer.check_val_every_n_epoch is None else loop.batch_idx
    in_this_epoch = (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1) == 0
    ends_early = trainer.should_stop and trainer.fit_loop._can_stop_early
    return in_this_epoch and (ends_early or (count + 1) % (trainer.val_check_batch or math.inf) == 0)


def start_with_epoch(checkpoint: dict[str, Any]) -> None:
    """Make the resumed run begin with the epoch that begins when the checkpoint is saved, if one does.

    Lightning would end this epoch at once, because the counter of its updates is still that of the previous epoch.
    """
    epochs, updates = progress_of(checkpoint, EPOCH_PROGRESS), progress_of(checkpoint, TRAINING_PROGRESS)
    if epochs["current"]["ready"] > epochs["current"]["started"]:
        for counts in (epochs["current"], epochs["total"]):
            counts["ready"] = counts["started"]
        updates["current"] = dict.fromkeys(updates["current"], 0)
        updates["is_last_batch"] = False


def start_with_evaluation(checkpoint: dict[str, Any]) -> None:
    """Make the resumed run begin with the evaluation that follows the current update, if the update is complete."""
    updates, episodes = progress_of(checkpoint, TRAINING_PROGRESS), progress_of(checkpoint, VALIDATION_PROGRESS)
    if updates["current"]["processed"] > updates["current"]["completed"]:
        for counts in (updates["current"], updates["total"]):
            counts["completed"] = counts["processed"]
        force_evaluation_on_resume(episodes, episodes["total"]["completed"])


def force_evaluation_on_resume(progress: dict[str, Any], completed: int) -> None:
    """Change the counters to those of an evaluation interrupted in its first episode, after `completed` episodes."""
    for counts, done in ((progress["current"], 0), (progress["total"], completed)):
        counts.update(ready=done + 1, started=done + 1, processed=done, completed=done)
    progress["is_last_batch"] = False

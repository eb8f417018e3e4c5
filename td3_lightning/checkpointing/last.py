"""Callback that keeps the newest checkpoint and the one before it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning_utilities.core.rank_zero import WarningCache
from torch import Tensor

from td3_lightning.algorithm.distributed import select_rank
from td3_lightning.atomic_files import make_folder, remove_temp_files
from td3_lightning.checkpointing.replay_segments import Segments
from td3_lightning.checkpointing.rotation import CheckpointRotation
from td3_lightning.errors import UsageError
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.run_dir import LockingCallback, RunLock, run_exists_error
from td3_lightning.serialization.checkpoint_file import replays_in
from td3_lightning.serialization.segment_files import FOLDER, names_in
from td3_lightning.training.data_module import ReplayData, SavedReplay
from td3_lightning.training.evaluation import StopWhenSolved

CRITERIA = (
    "monitor",
    "mode",
    "min_delta",
    "patience",
    "stopping_threshold",
    "divergence_threshold",
    "threshold",
    "window",
)


class LastCheckpoint(LockingCallback, ModelCheckpoint):
    """Keeps the newest state, `last.ckpt`, and the one before it, `last-1.ckpt`, with the replay's rows beside them.

    A save writes the rows that are new. What a full disk stops is said once, and the run goes on.

    Args:
        dirpath: Their folder; None is `checkpoints` in the run's folder.
    """

    def __init__(self, dirpath: str | Path | None = None) -> None:
        super().__init__(dirpath, "last", enable_version_counter=False)
        self._warnings = WarningCache()
        self._goes_on = False  # the folder is this run's
        self._ends_in_evaluation = False  # the run ended, but for that
        self._named: set[str] = set()  # the files of rows that the checkpoint in the making names
        self._saved_at = 0  # Adam steps, as Lightning counts them, at the last save

    @cached_property
    def state_key(self) -> str:
        """What its state would be called; Lightning asks for it at every hook."""
        return super().state_key

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Finds the folder."""
        super().setup(trainer, pl_module, stage)
        folder = Path(str(self.dirpath))
        self._generations = CheckpointRotation(folder)
        self._segments = Segments(folder / FOLDER, trainer.global_rank)

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Goes on from the files that the checkpoint names, if it lies in this folder."""
        path, data = Path(str(trainer.ckpt_path)), _replay_data(trainer)
        if data is not None and data.empty_replay:  # another stage of training, with evaluations of its own
            reset_stopping_state(trainer, checkpoint)
        # What ended the run ends it again, as long as the same is asked for.
        ended = bool(stopping_criteria(trainer)) and checkpoint.get("stopped_early") == stopping_criteria(trainer)
        self._ends_in_evaluation = ended and _is_in_evaluation(checkpoint)
        trainer.should_stop = ended and not self._ends_in_evaluation
        restore_patience(trainer, checkpoint)
        if not same_folder(path.parent, self.dirpath):
            return
        self._goes_on = True
        replays = list(replays_in(checkpoint))
        self._generations.begin_from(path, names_in(replays))
        replay = select_rank(replays)
        if data is not None and replay is not None and not data.empty_replay:
            self._segments.continue_from(data.replay, replay)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuses a new run in the folder of another, and a callback that would write its last.ckpt here."""
        others = [other for other in trainer.checkpoint_callbacks if isinstance(other, ModelCheckpoint)]
        if any(other.save_last and same_folder(Path(str(other.dirpath)), self.dirpath) for other in others):
            raise UsageError(
                f"{self._generations.last} is the run's own, with its replay, but a ModelCheckpoint of "
                "trainer.callbacks has save_last; leave that out, or give it a dirpath."
            )
        saves = not trainer.fast_dev_run  # type: ignore[attr-defined]  # Lightning sets it without a type
        if saves and not self._goes_on and self._generations.last.exists():
            raise run_exists_error(self._generations.folder)
        self._goes_on = True
        if saves and trainer.is_global_zero:
            self._enter(trainer)

    def _enter(self, trainer: L.Trainer) -> None:
        """Keeps other processes out, where nobody does that for a run's folder around it."""
        folder = self._generations.folder
        logs = [Path(logger.log_dir).resolve() for logger in trainer.loggers if isinstance(logger, RunLogger)]
        if not any(folder.resolve().is_relative_to(log) for log in logs):
            make_folder(folder)
            self._lock = RunLock(folder)
        remove_temp_files(folder)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Notes where the run begins or goes on; one that had ended gets the evaluation that it was stopped in."""
        self._saved_at = trainer.global_step
        if self._ends_in_evaluation:
            self._ends_in_evaluation, trainer.should_stop = False, True
            loop: Any = trainer.fit_loop
            if loop._can_stop_early:  # what comes after a last update, which Lightning would leave out
                loop.epoch_loop.on_advance_end(loop._data_fetcher)
                loop.on_advance_end()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves what was trained since the last evaluation."""
        if trainer.global_step > self._saved_at and not self._should_skip_saving_checkpoint(trainer):
            self.save(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Notes which files the checkpoint names, of all ranks, and by what the run was ended, if it was."""
        checkpoint["stopped_early"] = stopping_criteria(trainer) if any(map(_has_stopped, _stoppers(trainer))) else []
        self._named = names_in(list(replays_in(checkpoint)))

    def save(self, trainer: L.Trainer) -> str | None:
        """Saves last.ckpt, on every rank, and says where it is; None, after a warning, if the disk did not take it."""
        error = attempt(trainer, lambda: self._save(trainer))
        if error is not None:
            warn_unsaved(self._warnings, self.last_model_path, error)
        return None if error else self.last_model_path

    def _save(self, trainer: L.Trainer) -> None:
        self.best_model_path = self.last_model_path = str(self._generations.last)
        self._last_global_step_saved = self._saved_at = trainer.global_step
        with saving(trainer, self._segments.save), barrier_on_error(trainer):
            trainer.save_checkpoint(self._generations.next)
        if trainer.is_global_zero:
            self._generations.commit(self._named)
            for logger in trainer.loggers:
                logger.after_save_checkpoint(self)

    def _save_topk_checkpoint(self, trainer: L.Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        self.save(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the folder says what there is."""
        return {}


def _stoppers(trainer: L.Trainer) -> list[EarlyStopping | StopWhenSolved]:
    """The callbacks that stop a run early."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, EarlyStopping | StopWhenSolved)]


def _has_stopped(stopper: EarlyStopping | StopWhenSolved) -> bool:
    if isinstance(stopper, StopWhenSolved):
        return stopper.solved
    return stopper.stopping_reason is not EarlyStoppingReason.NOT_STOPPED


def stopping_criteria(trainer: L.Trainer) -> list[dict[str, Any]]:
    """When those do so."""
    return [{name: vars(each)[name] for name in CRITERIA if name in vars(each)} for each in _stoppers(trainer)]


def _is_in_evaluation(checkpoint: dict[str, Any]) -> bool:
    counts = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]["total"]
    return bool(counts["ready"] > counts["completed"])


def restore_patience(trainer: L.Trainer, checkpoint: dict[str, Any]) -> None:
    """Leaves EarlyStopping the patience that it was given, for Lightning has the checkpoint's win, and a new start."""
    for callback in trainer.early_stopping_callbacks:
        if state := checkpoint["callbacks"].get(callback.state_key):
            state["patience"] = callback.patience
            if not trainer.should_stop:
                state["stopping_reason"] = EarlyStoppingReason.NOT_STOPPED.value


def reset_stopping_state(trainer: L.Trainer, checkpoint: dict[str, Any]) -> None:
    """Has a stage that begins stop by its own evaluations alone."""
    checkpoint["stopped_early"] = []
    for stopper in _stoppers(trainer):
        state = checkpoint["callbacks"].pop(stopper.state_key, None)
        if state and isinstance(stopper, StopWhenSolved):
            checkpoint["callbacks"][stopper.state_key] = {**state, "returns": []}


def same_folder(one: Path, other: str | Path | None) -> bool:
    return one.resolve() == Path(str(other)).resolve()


def _replay_data(trainer: L.Trainer) -> ReplayData | None:
    data = trainer.datamodule  # type: ignore[attr-defined]  # set without a type
    return data if isinstance(data, ReplayData) else None


def saving(trainer: L.Trainer, saved: SavedReplay) -> AbstractContextManager[None]:
    data = _replay_data(trainer)
    return nullcontext() if data is None else data.saving_replay(saved)


def attempt(trainer: L.Trainer, save: Callable[[], None]) -> OSError | None:
    """Has every rank save; an error of the disk, where rank 0 met one, is given instead of raised, to all."""
    try:
        save()
        error = None
    except OSError as raised:
        error = raised
    answer: OSError | None = trainer.strategy.broadcast(error)
    return answer


@contextmanager
def barrier_on_error(trainer: L.Trainer) -> Iterator[None]:
    """After an error, meets the other ranks where `trainer.save_checkpoint` ends, for they wait there."""
    try:
        yield
    except OSError:
        trainer.strategy.barrier()
        raise


def warn_unsaved(warnings: WarningCache, what: str, error: OSError) -> None:
    reason = error.strerror or error
    warnings.warn(f"{what} could not be saved ({reason}); the run goes on, and what was saved before is as it was.")

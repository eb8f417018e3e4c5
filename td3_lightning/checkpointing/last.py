"""Callback that keeps the newest checkpoint and the one before it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning_utilities.core.rank_zero import WarningCache
from torch import Tensor

from td3_lightning.algorithm.distributed import select_rank
from td3_lightning.atomic_files import make_folder, remove_temp_files
from td3_lightning.checkpointing.replay_segments import CheckpointRotation, Segments
from td3_lightning.errors import UsageError
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.run_dir import LockingCallback, RunLock, run_exists_error
from td3_lightning.serialization.checkpoint_file import replays_in
from td3_lightning.serialization.segment_files import FOLDER, names_in
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.evaluation import StopWhenSolved
from td3_lightning.training.saved_replay import SavedReplay

VALIDATION_PROGRESS = "epoch_loop.val_loop.batch_progress"  # Lightning's name of the counters of evaluation episodes
CRITERIA = (
    *("monitor", "mode", "min_delta", "patience", "stopping_threshold", "divergence_threshold"),  # of EarlyStopping
    *("threshold", "window"),  # of StopWhenSolved
)


class LastCheckpoint(LockingCallback, ModelCheckpoint):
    """Keep the newest checkpoint, `last.ckpt`, and the previous one, `last-1.ckpt`, with the replay rows beside them.

    Each save appends only the new rows. If the disk is full, the run continues after one warning.

    Args:
        dirpath: Folder of the checkpoints; None uses `checkpoints` in the run's folder.
    """

    def __init__(self, dirpath: str | Path | None = None) -> None:
        super().__init__(dirpath, "last", enable_version_counter=False)
        self._warnings = WarningCache()
        self._continues = False  # the folder belongs to this run
        self._ends_in_evaluation = False  # the run stopped early during its last evaluation
        self._named: set[str] = set()  # segment files that the checkpoint being saved refers to
        self._saved_at = 0  # trainer.global_step at the last save

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Prepare to write in the checkpoint folder."""
        super().setup(trainer, pl_module, stage)
        folder = Path(str(self.dirpath))
        self._rotation = CheckpointRotation(folder)
        self._segments = Segments(folder / FOLDER, trainer.global_rank)

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore the reason to stop, and continue the segment files if the checkpoint is in this folder."""
        path, data = Path(str(trainer.ckpt_path)), _replay_data(trainer)
        if data is not None and data.empty_replay:  # a new training stage
            checkpoint["stopped_early"] = []  # it stops only by its own evaluations
            for stopper in _stoppers(trainer):
                checkpoint["callbacks"].pop(stopper.state_key, None)
        # A run that stopped early stays stopped if its stopping criteria are unchanged.
        ended = bool(stopping_criteria(trainer)) and checkpoint.get("stopped_early") == stopping_criteria(trainer)
        episodes = progress_of(checkpoint, VALIDATION_PROGRESS)["total"] if ended else {}
        self._ends_in_evaluation = ended and episodes["ready"] > episodes["completed"]
        trainer.should_stop = ended and not self._ends_in_evaluation
        restore_patience(trainer, checkpoint)
        if not same_folder(path.parent, self.dirpath):
            return
        self._continues = True
        replays = list(replays_in(checkpoint))
        self._rotation.begin_from(path, names_in(replays))
        replay = select_rank(replays)
        if data is not None and replay is not None and not data.empty_replay:
            self._segments.continue_from(data.replay, replay)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse a new run in the folder of another run, and other callbacks that cannot write or replace last.ckpt."""
        others = [other for other in trainer.checkpoint_callbacks if isinstance(other, ModelCheckpoint)]
        if any(other.save_last and same_folder(Path(str(other.dirpath)), self.dirpath) for other in others):
            raise UsageError(
                "save_last must be false for a ModelCheckpoint in trainer.callbacks that writes to the folder of the "
                f"run, got true: it would overwrite {self._rotation.last}. Remove save_last, or set another dirpath."
            )
        saves = not trainer.fast_dev_run  # type: ignore[attr-defined]  # Lightning sets it without a type
        if saves and not self._continues and self._rotation.last.exists():
            raise run_exists_error(self._rotation.folder)
        self._continues = True
        if not saves or not trainer.is_global_zero:
            return
        folder = self._rotation.folder  # `LogRollback` locks the run's folder
        logs = [Path(logger.log_dir).resolve() for logger in trainer.loggers if isinstance(logger, RunLogger)]
        if not any(folder.resolve().is_relative_to(log) for log in logs):
            make_folder(folder)
            self._lock = RunLock(folder)
        remove_temp_files(folder)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note the starting step, and repeat the last evaluation of a run that was interrupted in it."""
        self._saved_at = trainer.global_step
        if self._ends_in_evaluation:
            self._ends_in_evaluation, trainer.should_stop = False, True
            loop: Any = trainer.fit_loop
            if loop._can_stop_early:  # Lightning does not repeat the evaluation after the last update
                loop.epoch_loop.on_advance_end(loop._data_fetcher)
                loop.on_advance_end()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the updates since the last evaluation."""
        if trainer.global_step > self._saved_at and not self._should_skip_saving_checkpoint(trainer):
            self.save(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note the segment files of all ranks, and store the stopping criteria if one of them ended the run."""
        has_stopped = any(
            each.solved if isinstance(each, StopWhenSolved) else each.stopping_reason != EarlyStoppingReason.NOT_STOPPED
            for each in _stoppers(trainer)
        )
        checkpoint["stopped_early"] = stopping_criteria(trainer) if has_stopped else []
        self._named = names_in(list(replays_in(checkpoint)))

    def save(self, trainer: L.Trainer) -> str | None:
        """Save last.ckpt on every rank. Return its path, or None after a warning if writing failed."""
        error = save_on_all_ranks(trainer, lambda: self._save(trainer))
        if error is not None:
            warn_unsaved(self._warnings, self.last_model_path, error, self.last_model_path)
            return None
        self._last_global_step_saved = self._saved_at = trainer.global_step
        if trainer.local_rank == 0 and not trainer.is_global_zero:  # the disk of another node may not be shared
            with suppress(OSError):
                self._rotation.delete_old(self._named)
        return self.last_model_path

    def _save(self, trainer: L.Trainer) -> None:
        self.best_model_path = self.last_model_path = str(self._rotation.last)
        with saving(trainer, self._segments.save), barrier_on_error(trainer):
            trainer.save_checkpoint(self._rotation.next)
        if trainer.is_global_zero:
            self._rotation.commit(self._named)
            for logger in trainer.loggers:
                logger.after_save_checkpoint(self)

    def _save_topk_checkpoint(self, trainer: L.Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        self.save(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return no state, because the folder holds it."""
        return {}


def _stoppers(trainer: L.Trainer) -> list[EarlyStopping | StopWhenSolved]:
    """Return the callbacks that stop a run early."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, EarlyStopping | StopWhenSolved)]


def stopping_criteria(trainer: L.Trainer) -> list[dict[str, Any]]:
    """Return the settings by which the callbacks stop a run early."""
    return [{name: vars(each)[name] for name in CRITERIA if name in vars(each)} for each in _stoppers(trainer)]


def restore_patience(trainer: L.Trainer, checkpoint: dict[str, Any]) -> None:
    """Keep the configured patience of EarlyStopping, and clear its stopping reason if the run continues.

    Lightning would restore both from the checkpoint.
    """
    for callback in trainer.early_stopping_callbacks:
        if state := checkpoint["callbacks"].get(callback.state_key):
            state["patience"] = callback.patience
            if not trainer.should_stop:
                state["stopping_reason"] = EarlyStoppingReason.NOT_STOPPED.value


def progress_of(checkpoint: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the counters of one of Lightning's loops in a checkpoint."""
    progress: dict[str, Any] = checkpoint["loops"]["fit_loop"][name]
    return progress


def same_folder(one: Path, other: str | Path | None) -> bool:
    """Return whether two paths lead to the same folder."""
    return one.resolve() == Path(str(other)).resolve()


def _replay_data(trainer: L.Trainer) -> ReplayData | None:
    data = trainer.datamodule  # type: ignore[attr-defined]  # set without a type
    return data if isinstance(data, ReplayData) else None


@contextmanager
def saving(trainer: L.Trainer, saved: SavedReplay) -> Iterator[None]:
    """Store in checkpoints what `saved` returns instead of the whole replay while the context is active."""
    data = _replay_data(trainer)
    if data is None:
        yield
        return
    data.saved_replay = saved
    try:
        yield
    finally:
        del data.saved_replay


def save_on_all_ranks(trainer: L.Trainer, save: Callable[[], None]) -> OSError | None:
    """Save on every rank. Return rank 0's disk error to all ranks instead of raising it."""
    try:
        save()
        error = None
    except OSError as raised:
        error = raised
    shared: OSError | None = trainer.strategy.broadcast(error)
    return shared


@contextmanager
def barrier_on_error(trainer: L.Trainer) -> Iterator[None]:
    """Join the barrier at the end of `trainer.save_checkpoint` after an error, because the other ranks are in it."""
    try:
        yield
    except OSError:
        trainer.strategy.barrier()
        raise


def warn_unsaved(warnings: WarningCache, what: str, error: OSError, previous: str) -> None:
    """Warn once that a checkpoint could not be written. `previous` is the path of the previous one, if any."""
    reason = error.strerror or error
    kept = ", and the previous checkpoint is unchanged" if os.path.isfile(previous) else " without a checkpoint"
    warnings.warn(f"{what} could not be saved ({reason}). The run continues{kept}.")

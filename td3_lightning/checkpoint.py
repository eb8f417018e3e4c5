"""Checkpoints: written so that no crash leaves half of one, read with care, and saved when a signal stops the run."""

import contextlib
import math
import os
import pickle
import signal
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info

from td3_lightning.collector import Collector
from td3_lightning.errors import UsageError

UNFINISHED = ".unfinished"  # ends the name of a file that is still being written


class DurableCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint so that a kill, a power cut or a full disk leaves the old file or the new one, whole.

    For the Trainer's `plugins`. Loading goes through `read_checkpoint`.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Writes beside the target, waits for the disk, and renames.

        Args:
            checkpoint: What to save.
            path: The file; its folder is made if need be.
            storage_options: Not used.

        Raises:
            OSError: The disk is full or does not take the file; what `path` held before is untouched.
        """
        write_durably(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads onto the CPU, and never more than tensors and plain values.

        Args:
            path: The file.
            map_location: Not used.
            weights_only: Not used, as it is always true.
        """
        return read_checkpoint(path)


def write_durably(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Makes or replaces a file so that at every instant its name stands for a whole one.

    Args:
        path: The file; its folder is made if need be.
        write: Writes the content into the file it is given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f".*{UNFINISHED}"):  # a killed process could not clear up
        stale.unlink(missing_ok=True)
    unfinished = path.with_name(f".{path.name}{UNFINISHED}")
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        raise _reason(error) from None
    _sync_folder(path.parent)


def _reason(error: BaseException) -> BaseException:
    """What stopped `torch.save`, which it hides behind a complaint about the file's position."""
    while isinstance(error, RuntimeError) and error.__context__ is not None:
        error = error.__context__
    return error


def _sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk: syncing a file does not do that for its name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Reading.


class _UnfitError(Exception):
    """Why a file is no checkpoint, as the end of a sentence that begins with its name."""


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Loads a checkpoint onto the CPU, if it is whole, of this package, and nothing but tensors and plain values.

    Args:
        path: The file.

    Returns:
        What was saved.

    Raises:
        UsageError: It is not so; the sentence names a good one in the same folder, if there is one.
    """
    path = Path(path)
    try:
        return _read(path)
    except _UnfitError as unfit:
        raise UsageError(f"{path} {unfit}; {_way_out(path)}.") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            _check_archive(file)
            file.seek(0)
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise _UnfitError(f"cannot be read ({error.strerror})") from error
    except pickle.UnpicklingError as error:
        raise _UnfitError("is refused, for it holds objects that could run code when loaded") from error
    except (RuntimeError, LookupError, ValueError, TypeError, AttributeError, EOFError) as error:
        raise _UnfitError("is not a checkpoint, or is damaged") from error
    if not (isinstance(checkpoint, dict) and "clocks" in checkpoint):
        raise _UnfitError("is not a checkpoint of td3_lightning")
    return checkpoint


def _check_archive(file: BinaryIO) -> None:
    """Compares every checksum in the archive, which torch writes but does not look at."""
    start = file.read(4096)
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip() is not None
    except Exception as error:  # a changed byte can send zipfile anywhere
        if start.startswith(b"PK"):
            raise _UnfitError("is cut short or damaged") from error
        kind = "is empty" if not start else "is not a checkpoint" if any(start) else "holds nothing but zeros"
        raise _UnfitError(kind) from error
    if damaged:
        raise _UnfitError("is damaged: its content does not match its checksums")


def _way_out(path: Path) -> str:
    folder = path if path.is_dir() else path.parent
    others = (other for other in folder.glob("*.ckpt") if other.is_file() and other != path)
    for other in sorted(others, key=lambda file: file.stat().st_mtime, reverse=True):
        try:
            _read(other)
        except _UnfitError:
            continue
        return f"the newest whole one there is {other}"
    return "give the path of a .ckpt file that a run has saved"


# Stopping.

_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}  # the last one says: start me again


class Stopped(SystemExit):
    """Ends the process after a signal, with the exit status that a shell expects."""


class StopOnSignal(Callback):
    """On Ctrl-C, SIGTERM or SIGUSR1 finishes the update, saves `last.ckpt` and ends the process.

    The exit status is 130, 143 or 75; by the last one a queue knows to start the job again. The resumed run is the
    same run: a warm-up goes on where it was, an evaluation is begun again. Ctrl-C once more leaves at once, with
    the last checkpoint that was written. Stands after the Collector in the list of callbacks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.received: signal.Signals | None = None  # the signal that asked to stop
        self._previous: dict[signal.Signals, Any] = {}  # the handlers that were there before
        self._collectors: list[Collector] = []

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

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stops after the Collector's step; where an evaluation may be next, that is where to stop."""
        if not trainer.is_last_batch and (batch_idx + 1) % (trainer.val_check_batch or math.inf):
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
        path = _last_path(trainer)
        if path is not None:
            trainer.save_checkpoint(path)
        saved = f"{path} goes on from here" if path else "nothing is saved, as the run keeps no checkpoints"
        rank_zero_info(f"Stopped by {reason.name}: {saved}.")
        raise Stopped(_STATUS[reason])

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Has a run that was stopped in an evaluation evaluate again from the first episode."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
        current, total = progress["current"], progress["total"]
        if trainer.validating and current["ready"] > current["completed"]:
            # To Lightning this is an evaluation stopped in its first episode.
            before = total["completed"] - current["completed"]
            for counts, done in ((current, 0), (total, before)):
                counts.update(ready=done + 1, started=done + 1, processed=done, completed=done)
            progress["is_last_batch"] = False

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


def _last_path(trainer: L.Trainer) -> str | None:
    """Where the run keeps its newest checkpoint; None if it keeps none."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None:
            # It is part of what is saved, so that the resumed run goes on replacing this file.
            callback.last_model_path = callback.last_model_path or os.path.join(callback.dirpath, "last.ckpt")
            return callback.last_model_path
    return None

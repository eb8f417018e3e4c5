"""Find and lock run folders: `lightning_logs/name/version_N`, with the checkpoints in `checkpoints`."""

import contextlib
import os
import time
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback

from td3_lightning.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows, which has no locks of folders
    fcntl = None  # type: ignore[assignment]


def run_dir_of(checkpoint: Path) -> Path | None:
    """Return the run folder that contains a checkpoint. None if the checkpoint is outside a run folder."""
    folder = Path(os.path.abspath(checkpoint)).parent  # abspath removes ".."
    is_run = folder.name == "checkpoints" and (folder.parent / "config.yaml").is_file()
    return folder.parent if is_run else None


def continues_in(trainer: L.Trainer, folder: Path) -> bool:
    """Return whether a run resumes from a checkpoint inside a folder."""
    return trainer.ckpt_path is not None and folder.resolve() in Path(trainer.ckpt_path).resolve().parents


def config_of(checkpoint: Path) -> Path:
    """Return the path of a run's configuration.

    It is next to the checkpoint in a published run, and otherwise one folder higher.
    """
    beside = checkpoint.parent / "config.yaml"
    return beside if beside.exists() else checkpoint.parent.parent / "config.yaml"


def newest_last(runs: Path, name: str) -> Path:
    """Return the most recent `last.ckpt` of the runs with a name.

    Raises:
        UsageError: No run of that name has one.
    """
    found = list((runs / name).glob("*/checkpoints/last.ckpt"))
    if not found:
        raise UsageError(
            f"--ckpt_path last requires a run with a last.ckpt, got none in {runs / name}. Use the --name of an "
            "existing run or the path of a checkpoint, or fit without --ckpt_path for a new run."
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def run_exists_error(folder: Path) -> UsageError:
    """Build the error for a new run in the folder of an existing run."""
    return UsageError(
        f"The run folder must be empty, got {folder} with an existing run. Use --ckpt_path with its last.ckpt to "
        "resume that run, or another folder (--name, or --checkpoint.dirpath if you set it or have no logger)."
    )


class RunLock:
    """Lock a run folder until `release` is called or the process ends.

    The lock is on the folder itself, so no lock file is created. There is no lock if the folder does not exist or the
    file system does not support locks.

    Args:
        folder: Folder to lock.
        timeout: Seconds to wait for another process to release the folder.

    Raises:
        UsageError: Another process has locked the folder.
    """

    def __init__(self, folder: Path, timeout: float = 3.0) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.open(folder, os.O_RDONLY)
        deadline = time.monotonic() + timeout
        while not self._try_lock():
            if time.monotonic() > deadline:
                self.release()
                raise UsageError(
                    f"The run folder must be unused, got {folder}, which is in use by another process. Stop that "
                    "process first, or use another folder (--name, or --checkpoint.dirpath if you set it)."
                )
            time.sleep(0.1)

    def _try_lock(self) -> bool:
        try:
            if self._descriptor is not None and fcntl is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return not isinstance(error, BlockingIOError)  # otherwise, the file system does not support locks
        return True

    def release(self) -> None:
        """Release the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class LockingCallback(Callback):
    """Release the lock of a folder when the run ends or fails."""

    _lock: RunLock | None = None

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Release the lock after the other hooks have saved their files."""
        super().on_exception(trainer, pl_module, exception)
        self._release()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Release the lock."""
        super().teardown(trainer, pl_module, stage)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

"""Where runs lie: lightning_logs/name/version_N, with their checkpoints in `checkpoints`; one process works in each."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback

from td3_lightning.errors import UsageError


def run_dir_of(checkpoint: Path) -> Path | None:
    """The folder of the run that a checkpoint lies in; None if it was copied away."""
    folder = Path(os.path.abspath(checkpoint)).parent  # without ".." in it
    in_a_run = folder.name == "checkpoints" and (folder.parent / "config.yaml").is_file()
    return folder.parent if in_a_run else None


def continues_in(trainer: L.Trainer, folder: Path) -> bool:
    """Whether the checkpoint that a run continues from lies below a folder."""
    return trainer.ckpt_path is not None and folder.resolve() in Path(trainer.ckpt_path).resolve().parents


def config_of(checkpoint: Path) -> Path:
    """Where a run's configuration is, beside the folder of its checkpoints or, if it was published, beside them."""
    beside = checkpoint.parent / "config.yaml"
    return beside if beside.exists() else checkpoint.parent.parent / "config.yaml"


def newest_last(runs: Path, name: str) -> Path:
    """The last.ckpt of the run of a name that was saved last; raises `UsageError` if there is none."""
    found = list((runs / name).glob("*/checkpoints/last.ckpt"))
    if not found:
        raise UsageError(
            f"--ckpt_path last is the newest run's last.ckpt, but {runs / name} has none; give the "
            "--name that it has, the path of a last.ckpt, or leave --ckpt_path out to begin a run."
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def run_exists_error(folder: Path) -> UsageError:
    """The refusal of a new run in the folder of another, with the two ways out."""
    return UsageError(
        f"{folder} holds a run already; go on with that (--ckpt_path and its last.ckpt), or give the new one another "
        "folder (--name, or --checkpoint.dirpath if you gave that or have no logger)."
    )


class RunLock:
    """A run's folder, held by this process until `release` or its end, however that comes.

    The folder itself is locked, so nothing is left in it. Where that cannot be done, as the file system has no locks
    or there is no folder, nothing is held.

    Args:
        folder: The folder.
        patience: How long to wait for a process that is ending, in seconds.

    Raises:
        UsageError: Another process holds it.
    """

    def __init__(self, folder: Path, patience: float = 3.0) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.open(folder, os.O_RDONLY)
        until = time.monotonic() + patience
        while not self._locked():
            if time.monotonic() > until:
                self.release()
                raise UsageError(
                    f"{folder} is in use: another process trains there; stop that one first, or give this run another "
                    "folder (--name, or --checkpoint.dirpath if you gave that)."
                )
            time.sleep(0.1)

    def _locked(self) -> bool:
        if self._descriptor is not None:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # no locks
                pass
        return True

    def release(self) -> None:
        """Lets go of it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class LockingCallback(Callback):
    """Lets other processes into a folder when the run ends, however that comes."""

    _hold: RunLock | None = None

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Lets them in, once it is saved what is to be."""
        super().on_exception(trainer, pl_module, exception)
        self._let_go()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Lets them in."""
        super().teardown(trainer, pl_module, stage)
        self._let_go()

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.release()

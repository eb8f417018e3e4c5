"""CheckpointIO plugin that writes atomically and reads safely."""

import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO

from td3_lightning.atomic_files import atomic_write, remove
from td3_lightning.errors import UsageError
from td3_lightning.serialization.checkpoint_file import MAX_PICKLE_BYTES, FileVersion, file_version, read_checkpoint
from td3_lightning.serialization.primitives import to_primitives


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write checkpoints atomically: after a kill, a power cut or a full disk, the old or the new file is complete.

    Pass it to the Trainer's `plugins`. `read_checkpoint` checks every checkpoint that is loaded.

    Args:
        already_read: A checkpoint, and the version of its file before it was read. The first load of the same version
            takes it.
    """

    def __init__(self, already_read: tuple[FileVersion, dict[str, Any]] | None = None) -> None:
        super().__init__()
        self._already_read = already_read

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write a temporary file, sync it to the disk, and rename it. Missing folders are created.

        Raises:
            OSError: The file cannot be written. The previous content of `path` is unchanged.
            UsageError: A value could not be loaded again, or the values are too many.
        """
        plain = {name: to_primitives(value, name) for name, value in checkpoint.items()}
        atomic_write(Path(path), lambda file: _write(plain, file))

    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load tensors and plain values onto the CPU, and refuse everything else, for any arguments."""
        held, self._already_read = self._already_read, None
        # The process that had the run's lock before may have saved a newer one.
        return held[1] if held and held[0] == file_version(path) else read_checkpoint(path)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a checkpoint, but never a folder."""
        if not Path(path).is_dir():
            remove(Path(path))


def _write(checkpoint: dict[str, Any], file: BinaryIO) -> None:
    """Write a checkpoint; raise `UsageError` if it has more plain values than `read_checkpoint` accepts."""
    torch.save(checkpoint, file)
    with zipfile.ZipFile(file) as archive:
        size = sum(record.file_size for record in archive.infolist() if record.filename.endswith("/data.pkl"))
    if size > MAX_PICKLE_BYTES:
        raise UsageError(
            f"A checkpoint must hold at most {MAX_PICKLE_BYTES:,} bytes besides its tensors, got {size:,}. "
            "Store the lists of your callbacks and your module as tensors."
        )

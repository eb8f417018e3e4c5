"""CheckpointIO plugin that writes atomically and reads with all checks."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO

from td3_lightning.atomic_files import atomic_write, remove
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from td3_lightning.serialization.primitives import to_primitives


class AtomicCheckpointIO(TorchCheckpointIO):
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
            UsageError: Something in it could not be loaded again.
        """
        plain = {name: to_primitives(value, name) for name, value in checkpoint.items()}
        atomic_write(Path(path), lambda file: torch.save(plain, file))

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

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a checkpoint, but never a folder.

        Args:
            path: The file.
        """
        if not Path(path).is_dir():
            remove(Path(path))

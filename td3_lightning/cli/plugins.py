"""Plugins of the Trainer."""

from collections.abc import Sequence
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from td3_lightning.checkpointing.io import AtomicCheckpointIO
from td3_lightning.errors import UsageError


def with_checkpoint_io(plugins: Sequence[Any]) -> list[Any]:
    """Return the plugins of the user, with `AtomicCheckpointIO` if none of them is a CheckpointIO.

    Raises:
        UsageError: A plugin writes checkpoints in the background.
    """
    if any(isinstance(plugin, AsyncCheckpointIO) for plugin in plugins):
        raise UsageError(
            "trainer.plugins must not contain AsyncCheckpointIO, because a run must not continue before last.ckpt is "
            "complete. Remove it. A save is fast because it writes only the new rows of the replay."
        )
    has_io = any(isinstance(plugin, CheckpointIO) for plugin in plugins)
    return [*plugins] if has_io else [*plugins, AtomicCheckpointIO()]

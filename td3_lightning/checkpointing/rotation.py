"""Rotation of last.ckpt and last-1.ckpt, and deletion of segment files that neither refers to."""

from pathlib import Path

from td3_lightning.atomic_files import link_or_copy, move, names, sync, temp_path
from td3_lightning.checkpointing.replay_segments import delete_unreferenced
from td3_lightning.errors import UsageError
from td3_lightning.serialization.checkpoint_file import read_checkpoint, replays_in
from td3_lightning.serialization.segment_files import FOLDER, names_in


class CheckpointRotation:
    """Replace last.ckpt by a complete new checkpoint, and keep the previous one as last-1.ckpt.

    Args:
        folder: Folder of the checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last, self.previous = folder / "last.ckpt", folder / "last-1.ckpt"
        self.next = temp_path(folder / "next.ckpt")
        self._complete = ""  # name of the checkpoint that this run saved last or resumed from
        self._named: set[str] = set()  # segment files that it refers to

    def begin_from(self, path: Path, named: set[str]) -> None:
        """Note that the run resumes from a checkpoint in this folder. The other checkpoint may be damaged."""
        if path.name in (self.last.name, self.previous.name):
            self._complete, self._named = path.name, named

    def commit(self, named: set[str]) -> None:
        """Rename the complete checkpoint `next`, which refers to these segment files, to last.ckpt."""
        if self._complete == self.last.name and self.last.name in names(self.folder):  # it may have been deleted
            link_or_copy(self.last, self.previous)
        move(self.next, self.last)
        sync(self.folder)
        self.delete_old(named)

    def delete_old(self, named: set[str]) -> None:
        """Delete the segment files to which neither last.ckpt, which refers to `named`, nor last-1.ckpt refers.

        Delete none if last-1.ckpt is damaged. The next save replaces it.
        """
        previous = self._named if self._complete else self._previous_named()
        if previous is not None:
            delete_unreferenced(self.folder / FOLDER, named | previous)
        self.begin_from(self.last, named)

    def _previous_named(self) -> set[str] | None:
        """Return the segment files of last-1.ckpt, which another run has written; None if it is damaged."""
        if self.previous.name not in names(self.folder):
            return set()
        try:
            return names_in(list(replays_in(read_checkpoint(self.previous))))
        except UsageError:
            return None

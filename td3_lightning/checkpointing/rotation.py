"""Rotation of last.ckpt and last-1.ckpt, with the segment files that they name."""

from pathlib import Path

from td3_lightning.atomic_files import exists, link_or_copy, move, sync, temp_path
from td3_lightning.checkpointing.replay_segments import delete_unreferenced
from td3_lightning.serialization.checkpoint_file import read_checkpoint, replays_in
from td3_lightning.serialization.segment_files import FOLDER, names_in


class CheckpointRotation:
    """last.ckpt and last-1.ckpt in a folder: a new one takes its place when it is whole, and the older one goes.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last, self.previous = folder / "last.ckpt", folder / "last-1.ckpt"
        self.next = temp_path(folder / "next.ckpt")
        self._whole = ""  # name of the one that this run saved last or began from
        self._named: set[str] = set()  # the files of rows that it names

    def begin_from(self, path: Path, named: set[str]) -> None:
        """Notes that the run goes on from a checkpoint here; if it is one of the two, the other may not be whole."""
        if path.name in (self.last.name, self.previous.name):
            self._whole, self._named = path.name, named

    def commit(self, named: set[str]) -> None:
        """Makes `next`, which is whole and names these files of rows, the last one."""
        if self._whole == self.last.name and exists(self.last):  # the folder may have been deleted
            link_or_copy(self.last, self.previous)
        move(self.next, self.last)
        sync(self.folder)
        delete_unreferenced(self.folder / FOLDER, named | (self._named if self._whole else self._found()))
        self.begin_from(self.last, named)

    def _found(self) -> set[str]:
        """The files that the previous one names, which is not of this run."""
        return names_in(list(replays_in(read_checkpoint(self.previous)))) if exists(self.previous) else set()

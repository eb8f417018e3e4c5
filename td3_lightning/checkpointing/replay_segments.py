"""Append-only segment files of replay rows beside a checkpoint, and the rotation of last.ckpt and last-1.ckpt."""

import os
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from td3_lightning.atomic_files import (
    durable_append,
    link_or_copy,
    make_folder,
    move,
    names,
    remove,
    sync,
    temp_path,
)
from td3_lightning.errors import UsageError
from td3_lightning.replay.buffer import Replay
from td3_lightning.replay.ring import Ring
from td3_lightning.serialization.checkpoint_file import read_checkpoint, replays_in
from td3_lightning.serialization.segment_files import FOLDER, NAME, names_in

SEGMENT_BYTES = 4 * 2**20  # a file is closed at this size


class RingSegments:
    """Write one ring's rows to append-only files.

    A row is written when it can no longer change, so a file is never rewritten or truncated. A checkpoint refers to the
    beginning of a file, with its checksum. The last two rows may still change and are stored in the checkpoint.
    `prefix` begins the file names and is unique to this process.
    """

    def __init__(self, folder: Path, ring: Ring, prefix: str) -> None:
        self.folder, self.ring, self.prefix = folder, ring, prefix
        self.named: list[dict[str, Any]] = []  # name, first row, rows, CRC32 of each file; oldest first
        self.files = 0  # created by this process
        self._growing = False  # the last file accepts more rows

    def save(self) -> dict[str, Any]:
        """Append the new rows durably, and return the ring's state with the list of files instead of the rows."""
        if not {segment["name"] for segment in self.named} <= set(names(self.folder)):
            self.named, self._growing = [], False  # a file was deleted: write all rows again
        valid = self.ring.valid_rows
        saved = max((segment["first"] + segment["rows"] for segment in self.named), default=0)
        self._growing = self._growing and saved >= valid.start  # a file's rows have no gap
        for numbers in self._pieces(range(max(saved, valid.start), self.ring.immutable_rows)):
            self._append(numbers)
        self.named = [segment for segment in self.named if segment["first"] + segment["rows"] > valid.start]
        still_open = range(max(self.ring.immutable_rows, valid.start), valid.stop)
        return {
            **self.ring.position(),
            "segments": [dict(segment) for segment in self.named],
            "rows": [(still_open.start, self.ring.copy(still_open))],
        }

    def continue_from(self, named: Sequence[Mapping[str, Any]]) -> None:
        """Continue from the files of a checkpoint. They stay unchanged, and new rows go to new files."""
        self.named, self._growing = [dict(segment) for segment in named], False

    def _pieces(self, numbers: range) -> Iterator[range]:
        """Split rows into one part for the growing file and one part for each new file."""
        capacity = max(SEGMENT_BYTES // self.ring.row_bytes, 1)
        while numbers:
            room = capacity - self.named[-1]["rows"] if self._growing else capacity
            yield numbers[:room]
            numbers = numbers[room:]

    def _append(self, numbers: range) -> None:
        if self._growing:
            segment = self.named.pop()
        else:
            make_folder(self.folder)
            self.files += 1
            segment = {"name": f"{self.prefix}-{self.files}.rows", "first": numbers.start, "rows": 0, "crc": 0}
        grown, self._growing = segment, False  # after an error the file is not appended to again
        parts = self.ring.parts(numbers)
        try:
            durable_append(self.folder / segment["name"], segment["rows"] * self.ring.row_bytes, parts)
            if not segment["rows"]:
                sync(self.folder)
            crc = segment["crc"]
            for part in parts:
                crc = zlib.crc32(part.data, crc)
            grown = {**segment, "rows": segment["rows"] + len(numbers), "crc": crc}
            self._growing = grown["rows"] < SEGMENT_BYTES // self.ring.row_bytes
        finally:
            self.named += [grown] if grown["rows"] else []


class Segments:
    """Write the replay rows of one process to files."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self._rings: list[RingSegments] = []

    def save(self, replay: Replay) -> dict[str, Any]:
        """Append the new rows durably, and return the replay's state with the lists of files instead of the rows."""
        return {**replay.position(), "rings": [ring.save() for ring in self._of(replay)]}

    def continue_from(self, replay: Replay, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint whose files are in this folder."""
        for ring, saved in zip(self._of(replay), state["rings"], strict=True):
            ring.continue_from(saved.get("segments", []))

    def _of(self, replay: Replay) -> list[RingSegments]:
        if [ring.ring for ring in self._rings] != replay.rings:
            prefix = f"{secrets.token_hex(6)}-{self.rank}"  # each replay has its own files
            self._rings = [RingSegments(self.folder, ring, f"{prefix}-{env}") for env, ring in enumerate(replay.rings)]
        return self._rings


def delete_unreferenced(folder: Path, named: set[str]) -> None:
    """Delete the segment files that no checkpoint refers to, unless the folder is a symlink."""
    if os.path.islink(folder):
        return
    for name in names(folder):
        if NAME.fullmatch(name) and name not in named:
            remove(folder / name)


class CheckpointRotation:
    """Replace last.ckpt by a complete new checkpoint, and keep the previous one as last-1.ckpt."""

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

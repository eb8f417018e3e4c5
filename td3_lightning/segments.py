"""The replay's rows on disk: append-only files beside the checkpoints that name them."""

import os
import re
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from td3_lightning.durable import append_durably, exists, make_folder, names, remove, sync
from td3_lightning.replay import Replay, Ring

FOLDER = "replay"  # beside the checkpoints
SEGMENT_BYTES = 4 * 2**20  # a file is closed once it has so many
NAME = re.compile(r"[0-9a-f]{12}-[0-9]+-[0-9]+-[0-9]+\.rows")


class UnfitError(Exception):
    """Why a file cannot be used, as the end of a sentence that begins with its name."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path


class RingSegments:
    """One ring's rows in files that only grow.

    A row is written once it cannot change any more, so a file is never rewritten or cut; what a checkpoint names is
    the beginning of a file, with its checksum. The last two rows may change, and go into the checkpoint.

    Args:
        folder: Where the files lie.
        ring: The rows.
        prefix: Begins the files' names, and no other process's.
    """

    def __init__(self, folder: Path, ring: Ring, prefix: str) -> None:
        self.folder, self.ring, self.prefix = folder, ring, prefix
        self.named: list[dict[str, Any]] = []  # name, first row, rows and CRC32 of each file, the oldest first
        self.files = 0  # begun by this process
        self._growing = False  # the last of them takes more rows

    def save(self) -> dict[str, Any]:
        """Appends the new rows, durably, and gives the ring's state with the files' list in place of the rows."""
        if not all(exists(self.folder / segment["name"]) for segment in self.named):
            self.named, self._growing = [], False  # the folder was deleted: begin anew
        held = self.ring.held
        saved = max((segment["first"] + segment["rows"] for segment in self.named), default=0)
        self._growing = self._growing and saved >= held.start  # a file's rows have no gap
        for numbers in self._pieces(range(max(saved, held.start), self.ring.settled)):
            self._append(numbers)
        self.named = [segment for segment in self.named if segment["first"] + segment["rows"] > held.start]
        still_open = range(max(self.ring.settled, held.start), held.stop)
        return {
            **self.ring.position(),
            "segments": [dict(segment) for segment in self.named],
            "rows": [(still_open.start, self.ring.copy(still_open))],
        }

    def adopt(self, named: Sequence[Mapping[str, Any]]) -> None:
        """Goes on from the files of a checkpoint; they are left as they are, and new ones begun."""
        self.named, self._growing = [dict(segment) for segment in named], False

    def _pieces(self, numbers: range) -> Iterator[range]:
        """Rows in portions that fill the growing file first, and then one each."""
        whole = max(SEGMENT_BYTES // self.ring.row_bytes, 1)
        while numbers:
            room = whole - self.named[-1]["rows"] if self._growing else whole
            yield numbers[:room]
            numbers = numbers[room:]

    def _append(self, numbers: range) -> None:
        segment = self.named.pop() if self._growing else self._new(numbers.start)
        grown, self._growing = segment, False  # after an error the file is left alone
        parts = self.ring.parts(numbers)
        try:
            append_durably(self.folder / segment["name"], segment["rows"] * self.ring.row_bytes, parts)
            if not segment["rows"]:
                sync(self.folder)
            crc = segment["crc"]
            for part in parts:
                crc = zlib.crc32(part.data, crc)
            grown = {**segment, "rows": segment["rows"] + len(numbers), "crc": crc}
            self._growing = grown["rows"] < SEGMENT_BYTES // self.ring.row_bytes
        finally:
            self.named += [grown] if grown["rows"] else []

    def _new(self, first: int) -> dict[str, Any]:
        make_folder(self.folder)
        self.files += 1
        return {"name": f"{self.prefix}-{self.files}.rows", "first": first, "rows": 0, "crc": 0}


class Segments:
    """A replay's rows in files, for one process.

    Args:
        folder: Where the files lie.
        rank: Number of the process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self._rings: list[RingSegments] = []

    def save(self, replay: Replay) -> dict[str, Any]:
        """Appends what is new, durably, and gives the replay's state with the files' list in place of the rows."""
        return {**replay.position(), "rings": [ring.save() for ring in self._of(replay)]}

    def adopt(self, replay: Replay, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint whose files lie in this folder."""
        for ring, saved in zip(self._of(replay), state["rings"], strict=True):
            ring.adopt(saved.get("segments", []))

    def _of(self, replay: Replay) -> list[RingSegments]:
        if [ring.ring for ring in self._rings] != replay.rings:
            prefix = f"{secrets.token_hex(6)}-{self.rank}"  # another replay has files of its own
            self._rings = [RingSegments(self.folder, ring, f"{prefix}-{env}") for env, ring in enumerate(replay.rings)]
        return self._rings


def names_in(replays: Sequence[Mapping[str, Any]]) -> set[str]:
    """The files that the saved replays of all ranks name."""
    rings = chain.from_iterable(replay.get("rings", []) for replay in replays)
    return {segment["name"] for ring in rings for segment in ring.get("segments", [])}


def sweep(folder: Path, named: set[str]) -> None:
    """Delete the segment files that no checkpoint names any more; a folder that is a link is not this run's own."""
    if os.path.islink(folder):
        return
    for name in names(folder):
        if NAME.fullmatch(name) and name not in named:
            remove(folder / name)


def with_rows(state: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A saved replay with its rows, which are read when they are asked for.

    Args:
        state: What `Segments.save` or `Replay.state_dict` gave.
        folder: Where the files lie.

    Raises:
        UnfitError: When the rows are asked for: a file is not there, or not what was saved.
    """
    width = state["layout"]["obs_dim"] + state["layout"]["action_dim"] + 2
    rings = [
        {**ring, "rows": chain(_read_rows(folder, ring.get("segments", []), width), ring["rows"])}
        for ring in state["rings"]
    ]
    return {**state, "rings": rings}


def check_rows(state: Mapping[str, Any], folder: Path) -> None:
    """Reads all files that a saved replay names; raises `UnfitError` if one is not as it was."""
    for ring in with_rows(state, folder)["rings"]:
        for _ in ring["rows"]:
            pass


def _read_rows(folder: Path, segments: Sequence[Mapping[str, Any]], width: int) -> Iterator[tuple[int, Tensor]]:
    for segment in segments:
        yield segment["first"], _read_segment(folder, segment, width)


def _read_segment(folder: Path, segment: Mapping[str, Any], width: int) -> Tensor:
    """The rows (n, width) of one file, as many as were there when it was named."""
    name, size = segment["name"], segment["rows"] * width * 4
    path = folder / name
    if not NAME.fullmatch(name):
        raise UnfitError(path, "is no name for a part of a replay")
    try:
        with path.open("rb") as file:
            # A malformed checkpoint may claim more rows than memory can hold.
            content = bytearray(file.read(min(size, os.fstat(file.fileno()).st_size)))
    except OSError as error:
        raise UnfitError(path, f"cannot be read ({error.strerror})") from error
    if len(content) != size or zlib.crc32(content) != segment["crc"]:
        raise UnfitError(path, "is cut short" if len(content) < size else "is damaged, or not the file that was saved")
    return torch.from_numpy(np.frombuffer(content, np.float32).reshape(-1, width))

"""Reading of the segment files that hold the replay rows of a checkpoint."""

import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = "replay"  # beside the checkpoints
NAME = re.compile(r"[0-9a-f]{12}-[0-9]+-[0-9]+-[0-9]+\.rows")


class UnfitError(Exception):
    """Reason why a file cannot be used. The text continues a sentence that begins with the file's name."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path


def names_in(replays: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the segment files that the replay states of all ranks refer to."""
    return {segment["name"] for replay in replays for segment in _segments(replay)}


def _segments(replay: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [segment for ring in replay.get("rings", []) for segment in ring.get("segments", [])]


def with_rows(state: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a replay state with its rows, which are read when they are iterated.

    Args:
        state: Result of `Segments.save` or `Replay.state_dict`.
        folder: Folder of the files.

    Raises:
        UnfitError: A file is missing or has changed; raised while the rows are iterated. Or it is named twice.
    """
    if len(names_in([state])) < len(_segments(state)):  # it would be read again and again
        raise UnfitError(folder, "holds each segment file once, but the checkpoint names one twice")
    width = state["layout"]["obs_dim"] + state["layout"]["action_dim"] + 2

    def read(segments: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Tensor]]:
        return ((segment["first"], _read_segment(folder, segment, width)) for segment in segments)

    return {**state, "rings": [{**r, "rows": chain(read(r.get("segments", [])), r["rows"])} for r in state["rings"]]}


def _read_segment(folder: Path, segment: Mapping[str, Any], width: int) -> Tensor:
    """Read the rows (n, width) of one file that the checkpoint refers to."""
    name, size = segment["name"], segment["rows"] * width * 4
    path = folder / name
    if not NAME.fullmatch(name):
        raise UnfitError(path, "is not a valid name for a segment file")
    try:
        if path.exists() and not path.is_file():
            raise UnfitError(path, "is not a file")  # reading a pipe may never end
        with path.open("rb") as file:
            # A malformed checkpoint may claim more rows than memory can hold.
            content = bytearray(file.read(min(size, os.fstat(file.fileno()).st_size)))
    except OSError as error:
        raise UnfitError(path, f"cannot be read ({error.strerror})") from error
    if len(content) != size or zlib.crc32(content) != segment["crc"]:
        raise UnfitError(path, "is truncated" if len(content) < size else "is damaged, or is not the saved file")
    return torch.from_numpy(np.frombuffer(content, np.float32).reshape(-1, width))

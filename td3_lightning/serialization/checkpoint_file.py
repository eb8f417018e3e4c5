"""Reading of checkpoint files that may be damaged or malicious."""

import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from torch import Tensor

from td3_lightning.errors import UsageError, one_line
from td3_lightning.serialization.archive import MAX_PICKLE_BYTES, ArchiveError, checked_archive
from td3_lightning.serialization.segment_files import FOLDER, UnfitError, check_rows

FORMAT = 1  # of the checkpoints that this version saves
MAX_VALUES = 2 * MAX_PICKLE_BYTES  # lists and mappings in a checkpoint, and what they hold
CLOCKS = ("env_steps", "updates", "episodes")  # attributes of an agent


def read_checkpoint(source: str | Path | IO[bytes]) -> dict[str, Any]:
    """Load a checkpoint onto the CPU, after checking that it is complete, of this package, and safe to load.

    It holds only tensors and plain Python values.

    Args:
        source: A local file, or a file opened for reading.

    Raises:
        UsageError: The checkpoint is refused. The message names another one in the same folder, if there is one.
    """
    if not isinstance(source, str | Path):
        return _read_open(source)
    if "://" in str(source):
        raise UsageError(f"A checkpoint must be a local file, got {source}. Download it and give its path.")
    path = Path(source)
    try:
        return _read(path)
    except UnfitError as unfit:
        raise refusal(unfit, path) from None


def _read_open(file: IO[bytes]) -> dict[str, Any]:
    """Load a checkpoint from a file that is open."""
    path = Path(str(getattr(file, "name", "The file")))
    try:
        return _read(path, io.BytesIO(file.read()))
    except UnfitError as unfit:
        raise UsageError(f"{path} {unfit}. Use a .ckpt file that a run has saved.") from None


def _read(path: Path, content: BinaryIO | None = None) -> dict[str, Any]:
    """Load a checkpoint from a path, or from the content of a file; raise `UnfitError` if it is refused."""
    try:
        if content is None and path.exists() and not (path.is_file() or path.is_dir()):
            raise UnfitError(path, "is not a file")  # reading a pipe or a device may never end
        with content or path.open("rb") as file:
            checkpoint = torch.load(checked_archive(file), map_location="cpu", weights_only=True)
            _check_contents(checkpoint)
    except OSError as error:
        raise UnfitError(path, f"cannot be read ({error.strerror})") from error
    except ArchiveError as error:
        raise UnfitError(path, str(error)) from error
    except UnfitError:
        raise
    except Exception as error:  # zipfile, pickle and torch raise any exception for a damaged or malicious file
        raise UnfitError(path, f"is damaged, or not a checkpoint of td3_lightning: {one_line(error)[:200]}") from error
    if not (isinstance(checkpoint, dict) and {"clocks", "state_dict", "hyper_parameters"} <= checkpoint.keys()):
        raise UnfitError(path, "is not a checkpoint of td3_lightning")
    if checkpoint.get("format", 0) > FORMAT:
        raise UnfitError(
            path, f"must have at most format {FORMAT}, got {checkpoint['format']} from a newer version of td3_lightning"
        )
    return checkpoint


def _check_contents(checkpoint: Any) -> None:
    """Check that all values can be visited in a short time, and that each tensor stores its elements.

    A few bytes can describe a list that holds itself or one list a million times, or a tensor that repeats a number.
    """
    pending = [checkpoint]
    for _ in range(MAX_VALUES):
        if not pending:
            return
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, Tensor) and value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ArchiveError("claims a tensor that it does not hold")
    raise ArchiveError(f"holds more than {MAX_VALUES:,} values")


def refusal(unfit: UnfitError, path: Path) -> UsageError:
    """Build the error for a checkpoint, or a segment file of it, that cannot be used.

    Args:
        unfit: The file and the reason.
        path: The checkpoint. The error suggests another checkpoint of its folder.
    """
    folder = path if os.path.isdir(path) else path.parent
    found = folder.glob("*.ckpt") if os.path.isdir(folder) else ()  # Path.is_dir raises if the folder cannot be read
    others = [other for other in found if os.path.isfile(other) and other != path]
    others.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    # Prefer a checkpoint from which a run can be resumed.
    for replay, condition in ((True, ""), (False, "; to train on, add --data.empty_replay true")):
        for other in others:
            if _is_complete(other, replay):
                fix = f"Use the newest complete checkpoint there, {other}{condition}."
                return UsageError(f"{unfit.path} {unfit}. {fix}")
    return UsageError(f"{unfit.path} {unfit}. Use the path of a .ckpt file that a run has saved.")


def _is_complete(path: Path, replay: bool) -> bool:
    """Return whether a checkpoint can be read and, if `replay` is true, has its replay."""
    try:
        replays = list(replays_in(_read(path)))
        for state in replays if replay else ():
            check_rows(state, path.parent / FOLDER)
    except UnfitError:
        return False
    return bool(replays) or not replay


def replays_in(checkpoint: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the replay states of all ranks in a checkpoint."""
    for state in checkpoint.values():  # a data module's state has the name of its class
        ranks = state.get("ranks", []) if isinstance(state, dict) else []
        yield from (rank["replay"] for rank in ranks if isinstance(rank, dict) and "replay" in rank)

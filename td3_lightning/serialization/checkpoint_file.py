"""Reading of checkpoint files that may be damaged or malicious."""

import io
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch

from td3_lightning.errors import UsageError
from td3_lightning.serialization.archive import check_archive
from td3_lightning.serialization.checkpoint_schema import check_checkpoint
from td3_lightning.serialization.old_names import use_current_names
from td3_lightning.serialization.segment_files import FOLDER, UnfitError, check_rows
from td3_lightning.serialization.values import InvalidValueError

FORMAT = 1  # of the checkpoints that this version saves


def read_checkpoint(source: str | Path | IO[bytes]) -> dict[str, Any]:
    """Load a checkpoint onto the CPU, after checking that it is complete, of this package, and safe to load.

    It holds only tensors and plain Python values. `checkpoint_schema` defines the form of its parts.

    Args:
        source: A local file, or a file opened for reading.

    Returns:
        The checkpoint, with plain settings.

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
            _check_archive(path, file)
            file.seek(0)
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
            if isinstance(checkpoint, dict) and "clocks" in checkpoint:
                check_checkpoint(checkpoint)
                for part in ("config", "hyper_parameters"):
                    if part in checkpoint:
                        checkpoint[part] = use_current_names(checkpoint[part])
    except OSError as error:
        raise UnfitError(path, f"cannot be read ({error.strerror})") from error
    except pickle.UnpicklingError as error:
        raise UnfitError(path, "is refused because it holds objects that could run code when loaded") from error
    except InvalidValueError as error:
        raise UnfitError(path, f"is refused: {error}") from error
    except UnfitError:
        raise
    except Exception as error:  # torch raises any exception for a damaged file
        raise UnfitError(path, "is not a checkpoint, or is damaged") from error
    if not (isinstance(checkpoint, dict) and "clocks" in checkpoint):
        raise UnfitError(path, "is not a checkpoint of td3_lightning")
    if checkpoint.get("format", 0) > FORMAT:
        raise UnfitError(
            path, f"must have at most format {FORMAT}, got {checkpoint['format']} from a newer version of td3_lightning"
        )
    return checkpoint


def _check_archive(path: Path, file: BinaryIO) -> None:
    """Raise `UnfitError` for a file that is not a complete archive, or that claims more memory than its size."""
    start = file.read(4096)
    try:
        problem = check_archive(file)
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # zipfile raises any exception for a damaged file
        if start.startswith(b"PK"):
            raise UnfitError(path, "is truncated or damaged") from error
        kind = "is empty" if not start else "is not a checkpoint" if any(start) else "holds only zeros"
        raise UnfitError(path, kind) from error
    if problem is not None:
        raise UnfitError(path, problem)


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
        checkpoint = _read(path)
        return not replay or _has_replay(checkpoint, path.parent / FOLDER)
    except UnfitError:
        return False


def _has_replay(checkpoint: dict[str, Any], folder: Path) -> bool:
    replays = list(replays_in(checkpoint))
    for replay in replays:
        check_rows(replay, folder)
    return bool(replays)


def replays_in(checkpoint: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the replay states of all ranks in a checkpoint."""
    for state in checkpoint.values():  # a data module's state has the name of its class
        ranks = state.get("ranks", []) if isinstance(state, dict) else []
        yield from (rank["replay"] for rank in ranks if isinstance(rank, dict) and "replay" in rank)

"""Reading of checkpoint files that may be damaged or malicious: a check of the archive, then `torch.load`."""

import io
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from torch import Tensor

from td3_lightning.errors import UsageError, one_line
from td3_lightning.serialization.segment_files import UnfitError

FileVersion = tuple[int, ...]
FORMAT = 1  # of the checkpoints that this version saves
CLOCKS = ("env_steps", "updates", "episodes")  # attributes of an agent
MAX_PICKLE_BYTES = 4 * 2**20  # of data.pkl, which holds no tensors; usually a few 100 kB
MAX_KEY_BITS = 64  # Python computes the hash of a longer integer modulo 2^61 - 1, so any number of them can collide
COPIED = ("data.pkl", "version", "byteorder")  # and data/*
# torch's safe unpickler also allows `bytearray`, which allocates any size, and `set`, which hashes its elements.
NAMES = {
    *("collections.OrderedDict", "torch.Size", "torch.device", "_codecs.encode"),
    *("__builtin__.complex", "builtins.complex", "torch._utils._rebuild_parameter"),
    *("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"),
}
INSTRUCTIONS = (
    *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "BINPERSID", "NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINSTRING", "BININT", "BININT1", "BININT2", "LONG1", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("EMPTY_TUPLE", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"),
    *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
)


def file_version(path: str | Path) -> FileVersion:
    """Return what changes whenever a file is written again: device, inode, size and time (ns); nothing without one."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return ()


def read_checkpoint(source: str | Path | IO[bytes]) -> dict[str, Any]:
    """Load a checkpoint onto the CPU, after checking that it is complete, of this package, and safe to load.

    It holds only tensors and plain Python values.

    Args:
        source: A local file, or a file opened for reading.

    Raises:
        UsageError: The checkpoint is refused. The message names another one in the same folder, if there is one.
    """
    is_path = isinstance(source, str | Path)
    path = Path(source) if is_path else Path(str(getattr(source, "name", "The file")))  # type: ignore[arg-type]
    try:
        return _read(path, None if is_path else io.BytesIO(source.read()))  # type: ignore[union-attr]
    except UnfitError as unfit:
        raise refusal(unfit, path) from None


def _read(path: Path, content: BinaryIO | None = None) -> dict[str, Any]:
    """Load a checkpoint from a path, or from the content of a file; raise `UnfitError` if it is refused."""
    try:
        if content is None and path.exists() and not (path.is_file() or path.is_dir()):
            raise ValueError("it is not a file")  # reading a pipe or a device may never end
        with content or path.open("rb") as file:
            archive = checked_archive(file)
        checkpoint: dict[str, Any] = torch.load(archive, map_location="cpu", weights_only=True)
        _check_contents(checkpoint, most=archive.seek(0, io.SEEK_END))
        if missing := {"clocks", "state_dict", "hyper_parameters"} - checkpoint.keys():
            raise ValueError(f"it has no {' and no '.join(sorted(missing))}")
        held = checkpoint.get("format", 0)
        if held > FORMAT:
            raise ValueError(f"it must have at most format {FORMAT}, got {held} from a newer version of td3_lightning")
    except OSError as error:
        raise UnfitError(path, f"cannot be read ({error.strerror})") from error
    except Exception as error:  # zipfile, pickle and torch raise any exception for a damaged or malicious file
        raise UnfitError(path, f"is damaged, or not a checkpoint of td3_lightning: {one_line(error)[:200]}") from error
    return checkpoint


def _check_contents(checkpoint: Any, most: int) -> None:
    """Check that a checkpoint has at most as many values as bytes, and that each tensor stores its elements.

    A few bytes can describe a list that holds itself or one list a million times, or a tensor that repeats a number.
    """
    pending = [checkpoint]
    for _ in range(most):
        if not pending:
            return
        value = pending.pop()
        if isinstance(value, dict | list | tuple):
            pending += value.values() if isinstance(value, dict) else value
        elif isinstance(value, Tensor) and value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ValueError("it claims a tensor that it does not hold")
    raise ValueError(f"it claims more than {most:,} values")


def refusal(unfit: UnfitError, path: Path) -> UsageError:
    """Build the error for a checkpoint, or a segment file of it, that cannot be used.

    Args:
        unfit: The file and the reason.
        path: The checkpoint. The error suggests another checkpoint of its folder.
    """
    found = (path if os.path.isdir(path) else path.parent).glob("*.ckpt")
    others = [other for other in found if os.path.isfile(other) and other != path]
    if not others:
        return UsageError(f"{unfit.path} {unfit}. Use the path of a .ckpt file that a run has saved.")
    # Prefer one from which a run can be resumed, then the newest one.
    other = max(others, key=lambda file: (file.stem.startswith("last"), file.stat().st_mtime))
    return UsageError(f"{unfit.path} {unfit}. Use another checkpoint, such as {other}.")


def replays_in(checkpoint: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the replay states of all ranks in a checkpoint."""
    for state in checkpoint.values():  # a data module's state has the name of its class
        ranks = state.get("ranks", []) if isinstance(state, dict) else []
        yield from (rank["replay"] for rank in ranks if isinstance(rank, dict) and "replay" in rank)


def checked_archive(file: BinaryIO) -> BinaryIO:
    """Return a copy of an archive of `torch.save`, after checking its records and its pickle.

    torch then reads exactly what was checked, whatever else the file contains. All checksums match, because torch does
    not compare them. No record is compressed, and no tensor claims other bytes than its record has. Keys of mappings
    are texts and numbers, because the hash of a tuple can take hours.

    Raises:
        Exception: The file is no zip archive, is damaged, or is refused; zipfile and pickle raise many kinds.
    """
    size = file.seek(0, io.SEEK_END)
    copy, sizes = io.BytesIO(), {}
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(copy, "w") as copied:
        records = archive.infolist()
        is_stored = all(each.compress_type == zipfile.ZIP_STORED for each in records)
        if not is_stored or sum(each.file_size for each in records) > size:
            raise ValueError("it claims more content than it holds")
        for record in records:
            name = record.filename.partition("/")[2]
            if name in COPIED or name.startswith("data/"):
                if name.lower() in sizes:  # torch ignores the case
                    raise ValueError("it holds a record twice")
                sizes[name.lower()] = record.file_size
                copied.writestr(f"archive/{name}", archive.read(record))  # compares the checksum
        if sizes["data.pkl"] > MAX_PICKLE_BYTES:
            raise ValueError(f"it holds more than {MAX_PICKLE_BYTES:,} bytes besides its tensors")
        for key, claimed in _Scan(io.BytesIO(copied.read("archive/data.pkl"))).run().items():
            if sizes.get(f"data/{key}".lower()) != claimed:
                raise ValueError(f"it claims a tensor of {claimed:,} bytes, which it does not hold")
    copy.seek(0)
    return copy


def check_old_file(file: BinaryIO) -> None:
    """Check a file of torch before version 1.6, as `checked_archive` does.

    It has five pickles: a mark, a version, the machine, the content, and the order of the storages. Storages follow.

    Raises:
        Exception: The file is damaged or refused; pickle raises many kinds.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    claimed = sum(sum(_Scan(file).run().values()) for _ in range(5))
    if file.tell() > MAX_PICKLE_BYTES or claimed > size - file.tell():
        raise ValueError("it claims more content than it holds")


class _Mapping(dict[Any, Any]):
    """Stand for a mapping of a pickle. Its keys are checked and dropped."""

    def __setitem__(self, key: Any, value: Any) -> None:
        is_plain = key is None or isinstance(key, str | int | float)
        if not is_plain or (isinstance(key, int) and key.bit_length() > MAX_KEY_BITS):
            raise ValueError("it holds a key that is neither a text nor a number")

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, _Mapping):  # torch hashes the keys of pairs
            raise ValueError("it holds objects that no checkpoint has")


class _Name(str):
    """Stand for a class or function that a pickle names. A call has no effect."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        is_ordered = self == "collections.OrderedDict"
        # Other encodings than latin1 can take quadratic time.
        if (is_ordered and arguments) or (self == "_codecs.encode" and arguments[1:] != ("latin1",)):
            raise ValueError("it holds objects that no checkpoint has")
        return _Mapping() if is_ordered else object()


class _Scan(pickle._Unpickler):  # the version in Python, which finds its instructions in `dispatch`
    """Follow the instructions of a pickle without creating its objects, and check its names and keys."""

    dispatch = {  # noqa: RUF012  # as in the standard library
        code: pickle._Unpickler.dispatch[code] for code in (vars(pickle)[name][0] for name in INSTRUCTIONS)
    }

    def run(self) -> dict[str, int]:
        """Return the bytes of each storage that the pickle refers to."""
        self.claims: dict[str, int] = {}
        self.load()
        return self.claims

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a class or function; raise `ValueError` if it is not allowed."""
        found = vars(torch).get(name) if module in ("torch", "torch.storage") else None
        is_storage = isinstance(found, type) and name.endswith("Storage")
        if not (is_storage or isinstance(found, torch.dtype) or f"{module}.{name}" in NAMES):
            raise ValueError(f"it names {f'{module} {name}'[:80]!r}, which could run code when loaded")
        return _Name(f"{module}.{name}")

    def persistent_load(self, identifier: Any) -> Any:
        """Note the bytes that a storage claims."""
        _, kind, key, _, elements, *_ = identifier  # in old files, one more follows
        storage = vars(torch)[kind.rpartition(".")[2]]
        claimed = getattr(storage, "_dtype", torch.uint8).itemsize * elements
        if not isinstance(key, str) or self.claims.setdefault(key, claimed) != claimed:
            raise ValueError("it claims two sizes of one tensor")
        return object()


_Scan.dispatch[pickle.EMPTY_DICT[0]] = lambda scan: scan.append(_Mapping())  # type: ignore[attr-defined]

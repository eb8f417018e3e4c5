"""Checks of a checkpoint's zip archive before torch reads it."""

import io
import pickle
import re
import struct
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch

# Bytes of one element, by the name of the storage's class.
ITEM_BYTES = {
    **dict.fromkeys(("UntypedStorage", "ByteStorage", "CharStorage", "BoolStorage"), 1),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("FloatStorage", "IntStorage"), 4),
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    "ComplexDoubleStorage": 16,
}

BEGIN = b"PK\x03\x04"  # torch reads a file without it as an old pickle
MAX_PICKLE_BYTES = 4 * 2**20  # of data.pkl, which holds no tensors; usually a few 100 kB
END = b"PK\x05\x06"  # start of the last 22 bytes of an archive without a comment
LOCATOR, END_64 = b"PK\x06\x07", b"PK\x06\x06"  # starts of the 20 and 56 bytes before them in a file of torch


def check_archive(file: BinaryIO) -> str | None:
    """Return why a zip archive cannot be loaded safely, or None if it can.

    Every record is stored without compression, no record claims more bytes than the file has, all checksums match,
    and no tensor claims more elements than its record holds. So the tensors take no more memory than
    the file's size.

    Raises:
        Exception: The file is not a zip archive, or is damaged; zipfile raises many kinds.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    is_plain = file.read(4) == BEGIN
    file.seek(max(size - 22, 0))
    is_plain &= file.read(4) == END
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        if any(record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1 for record in records):
            return "has compressed content, which no checkpoint has"
        names = [record.filename for record in records]
        is_plain &= names == [record.orig_filename for record in records]  # torch reads the original names
        is_plain &= len(set(names)) == len(names) and not archive.comment and _has_one_directory(file, size)
        if not is_plain or sum(record.file_size for record in records) > size:
            return "claims more content than it holds"
        if archive.testzip() is not None:
            return "is damaged: its content does not match its checksums"
        return _check_tensors(archive, {record.filename: record.file_size for record in records})


def check_old_file(file: BinaryIO) -> str | None:
    """Return why a file of torch before version 1.6 cannot be loaded safely, or None if it can.

    It has five pickles: a mark, a version, the machine, the content, and the order of the storages. Storages follow.

    Raises:
        Exception: The file is damaged, or names code; pickle raises many kinds.
    """
    size, claimed = file.seek(0, io.SEEK_END), 0
    file.seek(0)
    for _ in range(5):
        scanner = PickleScanner(file)
        scanner.load()
        claimed += sum(scanner.storages.values())
    return f"claims {claimed:,} bytes of tensors, which it does not hold" if claimed > size - file.tell() else None


def _has_one_directory(file: BinaryIO, size: int) -> bool:
    """Return whether the records at the end agree on the place of the list of records.

    zipfile and torch find it in different ways, so torch could read another list than the checked one.
    """
    file.seek(max(size - 98, 0))
    tail = file.read().rjust(98, b"\0")
    end, small = size - 22, struct.unpack("<II", tail[-10:-2])  # bytes and place of the list
    place = small
    if tail[-42:-38] == LOCATOR:
        end = size - 98
        place = struct.unpack("<QQ", tail[40:56])
        if tail[:4] != END_64 or struct.unpack("<Q", tail[-34:-26]) != (end,):
            return False
    is_same = all(one in (other, 2**32 - 1) for one, other in zip(small, place, strict=True))
    return is_same and sum(place) == end


def _check_tensors(archive: zipfile.ZipFile, sizes: Mapping[str, int]) -> str | None:
    """Return why the tensors do not fit the records, or None."""
    folder = next(iter(sizes), "").split("/")[0]
    pickled = sizes.get(f"{folder}/data.pkl")
    if (
        pickled is None
        or f"{folder}/constants.pkl" in sizes
        or not all(name.startswith(f"{folder}/") for name in sizes)
    ):
        return "is not a checkpoint, or is damaged"
    if pickled > MAX_PICKLE_BYTES:
        return f"holds {pickled:,} bytes besides its tensors, which is more than {MAX_PICKLE_BYTES:,}"
    scanner = PickleScanner(io.BytesIO(archive.read(f"{folder}/data.pkl")))
    scanner.load()
    for key, claimed in scanner.storages.items():
        if sizes.get(f"{folder}/data/{key}") != claimed:
            return f"claims a tensor of {claimed:,} bytes, which it does not hold"
    return None


class InertObject:
    """Replace every class that a pickle refers to, and every mapping, so that nothing is imported or run."""

    __hash__: Any = None  # the hash of the object that is replaced is unknown

    def __init__(self, *args: Any) -> None:
        """Ignore the arguments."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Check a key, and ignore its value. Any number of long integers or tuples may have the same hash."""
        if not isinstance(key, str | int | float | None) or (isinstance(key, int) and key.bit_length() > 64):
            raise pickle.UnpicklingError("a key is neither a string nor a number")

    def __setstate__(self, state: Any) -> None:
        """Ignore a state."""


class InertMapping(InertObject):
    """Replace an ordered mapping, which a pickle creates without arguments."""

    def __init__(self) -> None:
        """Accept no arguments."""


class InertBytes(InertObject):
    """Replace the function that encodes text as bytes. Other encodings than pickle's may take hours."""

    __hash__ = object.__hash__

    def __init__(self, text: str, encoding: str) -> None:
        """Check the encoding."""
        if encoding != "latin1":
            raise pickle.UnpicklingError("bytes have another encoding than latin1")


# Names that a checkpoint may refer to besides storages and dtypes. torch also allows names such as `bytearray`, which
# can allocate any amount of memory.
NAMES: dict[tuple[str, str], type[InertObject]] = {
    ("collections", "OrderedDict"): InertMapping,
    ("torch", "Size"): InertObject,
    ("torch", "device"): InertObject,
    ("torch._utils", "_rebuild_tensor_v2"): InertObject,
    ("torch._utils", "_rebuild_tensor_v3"): InertObject,
    ("torch._utils", "_rebuild_parameter"): InertObject,
    ("_codecs", "encode"): InertBytes,
    **{(module, "complex"): InertObject for module in ("builtins", "__builtin__")},
}


class PickleScanner(pickle._Unpickler):  # the C version allocates as much memory as the file claims
    """Read a pickle without creating its objects, and note the sizes of its storages.

    Attributes:
        storages: Bytes that the pickle claims for each storage, by the name of its record.
    """

    # The instructions that torch's own safe unpickler supports, without those that no checkpoint needs.
    dispatch = {
        code[0]: pickle._Unpickler.dispatch[code[0]]
        for code in (
            *(pickle.PROTO, pickle.STOP, pickle.GLOBAL, pickle.REDUCE, pickle.BUILD, pickle.NEWOBJ, pickle.BINPERSID),
            *(pickle.MARK, pickle.EMPTY_TUPLE),
            *(pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.SETITEM, pickle.SETITEMS),
            *(pickle.APPEND, pickle.APPENDS, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
            *(pickle.BINUNICODE, pickle.SHORT_BINSTRING, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
            *(pickle.BINFLOAT, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
        )
    } | {
        pickle.EMPTY_DICT[0]: lambda scanner: scanner.append(InertMapping()),
        pickle.EMPTY_LIST[0]: lambda scanner: scanner.append([]),
    }

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.storages: dict[str, int] = {}
        self._classes: dict[tuple[str, str], type[InertObject]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that does nothing; raise `UnpicklingError` for a name that no checkpoint needs."""
        storage = module in ("torch", "torch.storage") and name in ITEM_BYTES
        dtype = (
            module == "torch" and re.fullmatch("[a-z0-9_]+", name) and isinstance(getattr(torch, name, 0), torch.dtype)
        )
        if not (storage or dtype or (module, name) in NAMES):
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        if (module, name) not in self._classes:  # a pickle may name it a million times
            self._classes[module, name] = type(name, (NAMES.get((module, name), InertObject),), {})
        return self._classes[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """Note how many bytes a storage claims."""
        _, kind, key, _, elements, *_ = pid  # in old files, one more follows
        claimed = ITEM_BYTES[kind.__name__] * elements
        if not isinstance(key, str) or not isinstance(elements, int) or self.storages.get(key, claimed) != claimed:
            raise pickle.UnpicklingError("a storage is malformed")
        self.storages[key] = claimed
        return InertObject()

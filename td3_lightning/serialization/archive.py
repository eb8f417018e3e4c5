"""Check of a checkpoint's archive, so that torch does no more work than the file's size implies."""

import io
import pickletools
import zipfile
from typing import Any, BinaryIO

import torch

MAX_PICKLE_BYTES = 4 * 2**20  # of data.pkl, which holds no tensors; usually a few 100 kB
MAX_KEY_BITS = 64  # Python computes the hash of a longer integer modulo 2^61 - 1, so any number of them can collide
COPIED = ("data.pkl", "version", "byteorder")  # and data/*
ITEM_BYTES = {
    **dict.fromkeys(("UntypedStorage", "ByteStorage", "CharStorage", "BoolStorage"), 1),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("FloatStorage", "IntStorage"), 4),
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    "ComplexDoubleStorage": 16,
}
# torch's safe unpickler also allows `bytearray`, which allocates any size, and `set`, which hashes its elements.
NAMES = {
    *("collections OrderedDict", "torch Size", "torch device", "_codecs encode"),
    *("__builtin__ complex", "builtins complex", "torch._utils _rebuild_parameter"),
    *("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3"),
}
LITERALS = {
    *("EMPTY_LIST", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BINUNICODE", "SHORT_BINSTRING", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
MAPPING, OBJECT = object(), object()  # stand for any mapping and for any other result


class ArchiveError(ValueError):
    """Reason why an archive is refused. The text continues a sentence that begins with the file's name."""


def checked_archive(file: BinaryIO) -> BinaryIO:
    """Return a copy of an archive of `torch.save`, after checking its records and its pickle.

    torch then reads exactly what was checked, whatever else the file contains. All checksums match, because torch does
    not compare them. No record is compressed, and no tensor claims other bytes than its record has. Keys of mappings
    are texts and numbers, because the hash of a tuple can take hours.

    Raises:
        ArchiveError: The archive is refused.
        Exception: The file is no zip archive, or is damaged; zipfile and pickletools raise many kinds.
    """
    size = file.seek(0, io.SEEK_END)
    copy, sizes = io.BytesIO(), {}
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(copy, "w") as copied:
        records = archive.infolist()
        is_stored = all(each.compress_type == zipfile.ZIP_STORED for each in records)
        if not is_stored or sum(each.file_size for each in records) > size:
            raise ArchiveError("claims more content than it holds")
        for record in records:
            name = record.filename.partition("/")[2]
            if name in COPIED or name.startswith("data/"):
                if name.lower() in sizes:  # torch ignores the case
                    raise ArchiveError("holds a record twice")
                sizes[name.lower()] = record.file_size
                copied.writestr(f"archive/{name}", archive.read(record))  # compares the checksum
        if sizes["data.pkl"] > MAX_PICKLE_BYTES:
            raise ArchiveError(f"holds more than {MAX_PICKLE_BYTES:,} bytes besides its tensors")
        for key, claimed in _claims(io.BytesIO(copied.read("archive/data.pkl"))).items():
            if sizes.get(f"data/{key}".lower()) != claimed:
                raise ArchiveError(f"claims a tensor of {claimed:,} bytes, which it does not hold")
    copy.seek(0)
    return copy


def check_old_file(file: BinaryIO) -> None:
    """Check a file of torch before version 1.6, as `checked_archive` does.

    It has five pickles: a mark, a version, the machine, the content, and the order of the storages. Storages follow.

    Raises:
        ArchiveError: The file is refused.
        Exception: The file is damaged; pickletools raises many kinds.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    claimed = sum(sum(_claims(file).values()) for _ in range(5))
    if file.tell() > MAX_PICKLE_BYTES or claimed > size - file.tell():
        raise ArchiveError("claims more content than it holds")


def _claims(pickled: BinaryIO) -> dict[str, int]:
    """Follow the instructions of a pickle without creating its objects, and check its names and keys.

    Returns:
        The bytes of each storage that the pickle refers to.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    claims: dict[str, int] = {}
    value: Any
    for opcode, value, _ in pickletools.genops(pickled):
        name = opcode.name
        if name in LITERALS:
            stack.append(value)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[value] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif name == "EMPTY_DICT":
            stack.append(MAPPING)
        elif name == "GLOBAL":
            stack.append(_checked_name(value))
        elif name == "MARK":
            marks.append(len(stack))
        elif name not in ("PROTO", "STOP"):
            _reduce(name, stack, marks, claims)
    return claims


def _reduce(name: str, stack: list[Any], marks: list[int], claims: dict[str, int]) -> None:
    """Follow an instruction that takes values from the stack."""
    if name in ("TUPLE", "APPENDS", "SETITEMS"):
        start = marks.pop()
    else:
        start = len(stack) - TUPLES.get(name, 2 if name in ("SETITEM", "REDUCE") else 1)
    taken = stack[start:]
    del stack[start:]
    if name == "TUPLE" or name in TUPLES:
        stack.append(taken)
    elif name in ("SETITEM", "SETITEMS"):
        for key in taken[::2]:
            _check_key(key)
    elif name == "REDUCE":
        stack.append(_result(*taken))
    elif name == "BINPERSID":
        _add_claim(taken[0], claims)
        stack.append(OBJECT)
    elif name == "BUILD":
        if taken[0] is not MAPPING:  # torch hashes the keys of pairs
            raise ArchiveError("holds objects that no checkpoint has")
    elif name not in ("APPEND", "APPENDS"):
        raise ArchiveError(f"holds the instruction {name}, which no checkpoint has")


def _checked_name(name: str) -> str:
    module, _, attribute = name.partition(" ")
    is_storage = module in ("torch", "torch.storage") and attribute in ITEM_BYTES
    is_dtype = module == "torch" and isinstance(vars(torch).get(attribute), torch.dtype)
    if not (is_storage or is_dtype or name in NAMES):
        raise ArchiveError(f"is refused because it names {name[:80]!r}, which could run code when loaded")
    return name


def _check_key(key: Any) -> None:
    is_plain = key is None or isinstance(key, str | int | float)
    if not is_plain or (isinstance(key, int) and key.bit_length() > MAX_KEY_BITS):
        raise ArchiveError("holds a key that is neither a text nor a number")


def _result(function: Any, arguments: Any) -> Any:
    """Return what stands for the result of a call, after checking calls whose arguments can cost much time."""
    if function == "_codecs encode" and arguments[1:] != ["latin1"]:
        raise ArchiveError("holds bytes in another encoding than latin1")
    if function == "collections OrderedDict":
        if arguments:
            raise ArchiveError("holds objects that no checkpoint has")
        return MAPPING
    return OBJECT


def _add_claim(identifier: Any, claims: dict[str, int]) -> None:
    """Note the bytes that a storage claims."""
    _, kind, key, _, elements, *_ = identifier  # in old files, one more follows
    claimed = ITEM_BYTES[kind.partition(" ")[2]] * elements
    if claims.setdefault(key, claimed) != claimed:
        raise ArchiveError("claims two sizes of one tensor")

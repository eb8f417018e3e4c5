"""Checks and plain copies of values from an untrusted file."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from td3_lightning.errors import MAX_BITS, UsageError

MAX_COUNT = 2**53  # the largest count; float64 represents every integer up to it
DEPTH = 32  # levels of nesting
VALUES = 2**24  # in one part of a checkpoint, as many as `archive.MAX_PICKLE_BYTES` can hold without sharing
NODES = 20_000  # values in one group of settings
LENGTH = 10_000  # characters of a string in the settings
SERIES = (list, tuple, set, frozenset, deque, torch.Size)
LEAVES = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)
# Of tensors that NumPy or torch can convert to float32; torch also has kinds that support almost no operation.
DTYPES = (
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)
Check = Callable[[Any, str], None]  # takes a value and its name, raises `InvalidValueError`


class InvalidValueError(UsageError):
    """A value in a file does not have the required form. The text names the value and has no fix."""

    def __init__(self, name: str, constraint: str, value: Any) -> None:
        super().__init__(f"{name} must be {constraint}, got {brief(value)}")


def brief(value: Any) -> str:
    """Describe any value in a few words, whatever its size."""
    if isinstance(value, str | bytes):
        return repr(value[:60])
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() <= MAX_BITS else f"an integer of {value.bit_length()} bits"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a value of type {type(value).__name__}"


def check_nesting(value: Any, name: str) -> None:
    """Check that a value holds only tensors and plain Python values, in at most `DEPTH` levels and without a cycle.

    It may hold at most `VALUES` values. A shared object counts each time, because later checks visit it each time, but
    is visited only once here.
    """
    _, values = _size(value, name, {}, 0)
    if values > VALUES:
        raise InvalidValueError(name, f"made of at most {VALUES:,} values", value)


def _size(value: Any, name: str, sizes: dict[int, tuple[int, int]], depth: int) -> tuple[int, int]:
    """Return the levels and the number of values of a value; (0, 0) in `sizes` marks a container being visited."""
    if isinstance(value, Tensor):
        check_tensor(value, name)
        return 0, 1
    if value is None or isinstance(value, LEAVES):
        return 0, 1
    if depth > DEPTH or sizes.get(id(value)) == (0, 0):
        raise InvalidValueError(name, f"nested at most {DEPTH} levels deep", value)
    if id(value) not in sizes:
        sizes[id(value)] = 0, 0
        held = [_size(held, name, sizes, depth + 1) for held in _held(value, name)]
        sizes[id(value)] = 1 + max((levels for levels, _ in held), default=0), 1 + sum(number for _, number in held)
    if sizes[id(value)][0] > DEPTH:
        raise InvalidValueError(name, f"nested at most {DEPTH} levels deep", value)
    return sizes[id(value)]


def _held(value: Any, name: str) -> Iterable[Any]:
    """Return the values in a container."""
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, Tensor) or not isinstance(key, str | int | float | bool | None):
                raise InvalidValueError(f"a key of {name}", "a string or a number", key)
        return value.values()
    if isinstance(value, SERIES):
        return value
    raise InvalidValueError(name, "made of tensors, numbers, strings, lists and mappings", value)


def check_tensor(value: Any, name: str) -> None:
    """Check that a value is an ordinary tensor whose elements are all stored in the file."""
    ordinary = isinstance(value, Tensor) and value.layout is torch.strided and value.device.type == "cpu"
    if not ordinary or value.is_quantized:
        raise InvalidValueError(name, "a dense tensor on the CPU", value)
    if value.requires_grad or value.dtype not in DTYPES:
        expected = "without a gradient" if value.requires_grad else "of a type with all operations"
        raise InvalidValueError(name, expected, value)
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise InvalidValueError(name, "a tensor whose elements are all stored in the file", value)


def array(value: Any, name: str) -> None:
    """Check for a tensor of real numbers that NumPy has a type for."""
    check_tensor(value, name)
    if value.dtype == torch.bfloat16 or value.is_complex():
        raise InvalidValueError(name, "a tensor of real numbers that NumPy supports", value)


def plain(value: Any, name: str) -> Any:
    """Return a copy of a setting that holds only dict, list, str, int, float, bool and None.

    Tuples become lists, other mappings become dicts.

    Args:
        value: The setting.
        name: Its name, for the message.

    Raises:
        InvalidValueError: The value holds something else, is too deep or too large.
    """
    return _plain(value, name, 0, iter(range(NODES)))


def _plain(value: Any, name: str, depth: int, budget: Any) -> Any:
    if depth > DEPTH or next(budget, None) is None:
        raise InvalidValueError(name, f"at most {DEPTH} levels deep with at most {NODES:,} values", value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return _plain_int(value, name)
    if isinstance(value, str):
        return _plain_text(value, name)
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return [_plain(held, f"{name}.{index}", depth + 1, budget) for index, held in enumerate(value)]
    if isinstance(value, Mapping):
        return {
            _plain_key(key, name): _plain(held, f"{name}.{brief(key)[:40]}".replace("'", ""), depth + 1, budget)
            for key, held in value.items()
        }
    raise InvalidValueError(name, "made of numbers, strings, lists and mappings", value)


def _plain_int(value: int, name: str) -> int:
    if value.bit_length() > MAX_BITS:
        raise InvalidValueError(name, f"an integer of at most {MAX_BITS} bits", value)
    return int(value)


def _plain_text(value: str, name: str) -> str:
    if len(value) > LENGTH or "\0" in value or any(0xD800 <= ord(letter) < 0xE000 for letter in value):
        raise InvalidValueError(name, f"at most {LENGTH:,} characters of valid text", value)
    return str(value)


def _plain_key(key: Any, name: str) -> Any:
    if isinstance(key, str):
        return _plain_text(key, f"a key of {name}")
    if isinstance(key, float) and math.isnan(key):  # equal to no other key
        raise InvalidValueError(f"a key of {name}", "a string or a number", key)
    if key is None or isinstance(key, bool | float):
        return key
    if isinstance(key, int):
        return _plain_int(key, f"a key of {name}")
    raise InvalidValueError(f"a key of {name}", "a string or a number", key)


def count(value: Any, name: str) -> None:
    """Check for an integer from 0 to `MAX_COUNT`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise InvalidValueError(name, "a non-negative integer", value)


def integer(value: Any, name: str) -> None:
    """Check for an integer of at most 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or value.bit_length() > MAX_BITS:
        raise InvalidValueError(name, "an integer", value)


def number(value: Any, name: str) -> None:
    """Check for a number that fits into float64."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidValueError(name, "a number", value)
    if isinstance(value, int) and value.bit_length() > 1000:
        raise InvalidValueError(name, "a number", value)


def text(value: Any, name: str) -> None:
    """Check for a string."""
    if not isinstance(value, str) or len(value) > LENGTH:
        raise InvalidValueError(name, "a string", value)


def flag(value: Any, name: str) -> None:
    """Check for a truth value."""
    if not isinstance(value, bool):
        raise InvalidValueError(name, "true or false", value)


def scalar(value: Any, name: str) -> None:
    """Check for a number, or a tensor of one real number."""
    if isinstance(value, Tensor):
        check_tensor(value, name)
        if value.numel() != 1 or value.is_complex():
            raise InvalidValueError(name, "one number", value)
    else:
        number(value, name)


def anything(value: Any, name: str) -> None:
    """Accept every value."""


def mapping(value: Any, name: str) -> None:
    """Check for a mapping."""
    if not isinstance(value, dict):
        raise InvalidValueError(name, "a mapping", value)


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""

    def checked(value: Any, name: str) -> None:
        if value is not None:
            check(value, name)

    return checked


def series(check: Check) -> Check:
    """Return a check for a list or a tuple of values."""

    def checked(value: Any, name: str) -> None:
        if not isinstance(value, list | tuple):
            raise InvalidValueError(name, "a list", value)
        for index, held in enumerate(value):
            check(held, f"{name}.{index}")

    return checked


def by_name(check: Check, name_check: Check | None = None) -> Check:
    """Return a check for a mapping of strings to values, whose keys pass `name_check`."""

    def checked(value: Any, name: str) -> None:
        mapping(value, name)
        for key, held in value.items():
            (name_check or text)(key, f"a key of {name}")
            check(held, f"{name}.{key[:60]}")

    return checked


def fields(required: Mapping[str, Check], other: Mapping[str, Check] | None = None) -> Check:
    """Return a check for a mapping that has all required keys, and checks the other keys if they are present."""

    def checked(value: Any, name: str) -> None:
        mapping(value, name)
        for key, check in {**required, **(other or {})}.items():
            if key in value:
                check(value[key], f"{name}.{key}")
            elif key in required:
                raise InvalidValueError(name, f'a mapping with the key "{key}"', value)

    return checked


def alike(value: Any, example: Any, name: str) -> None:
    """Check that a value has the structure of an example: the same keys with counts or flags."""
    if isinstance(example, dict):
        mapping(value, name)
        for key, held in example.items():
            if key not in value:
                raise InvalidValueError(name, f'a mapping with the key "{key}"', value)
            alike(value[key], held, f"{name}.{key}")
        if extra := value.keys() - example.keys():
            raise InvalidValueError(name, f"a mapping without {brief(next(iter(extra)))}", value)
    elif isinstance(example, bool):
        flag(value, name)
    elif isinstance(example, int):
        count(value, name)

"""Conversion to tensors and plain Python values for checkpoints."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from td3_lightning.errors import UsageError

VALUES = {type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device}

MAX_BITS = 64  # of an integer key
MAX_INT_BITS = 255 * 8  # of the largest integer, with its sign, that torch's safe unpickler reads

SERIES: dict[type, type] = {
    list: list,
    tuple: tuple,
    **dict.fromkeys((set, frozenset, deque), list),
}  # what they become


def to_primitives(value: Any, name: str) -> Any:
    """Convert a value to tensors and plain Python values; return the same object if it needs no conversion.

    NumPy numbers become Python numbers, arrays become tensors, other mappings become dicts, other sequences become
    lists, and paths become strings.

    Args:
        value: The value, which may be nested.
        name: Name of the value, for the error.

    Raises:
        UsageError: It holds a value of another type.
    """
    if isinstance(value, Tensor):
        return _plain_tensor(value, name)
    if type(value) in VALUES:
        _check_loadable(value, name)
        return value
    if isinstance(value, Mapping):
        return _plain_mapping(value, name)
    if isinstance(value, tuple(SERIES)):
        return _plain_series(value, name)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic) and type(value.item()) in VALUES:
        return to_primitives(value.item(), name)
    if isinstance(value, Enum):
        return to_primitives(value.value, name)
    if isinstance(value, PurePath):
        return str(value)
    raise UsageError(
        f"{name} must be made of tensors, numbers, strings, lists and dicts to be saved, got a "
        f"{type(value).__qualname__}. Store its values instead."
    )


def _check_loadable(value: Any, name: str) -> None:
    """Raise `UsageError` for values that torch can save but not load safely."""
    if type(value) is bytes and not value:
        raise UsageError(f"{name} must not be empty bytes to be saved, got b''. Use None or an empty string.")
    if type(value) is int and value.bit_length() >= MAX_INT_BITS:
        raise UsageError(
            f"{name} must be an integer below 2^{MAX_INT_BITS - 1} to be saved, got one of {value.bit_length():,} "
            "bits. Save it as a string."
        )


def _plain_tensor(value: Tensor, name: str) -> Tensor:
    """Return the tensor, or a copy if a checkpoint cannot hold its class, its attributes or its repeated elements."""
    if value.layout is not torch.strided or value.is_quantized:
        raise UsageError(f"{name} must be a dense tensor to be saved, got a {value.layout} tensor. Use to_dense().")
    is_plain = type(value) in (Tensor, Parameter) and not vars(value)
    is_stored = value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    return value if is_plain and is_stored else value.detach().as_subclass(Tensor).clone()


def _plain_key(value: Any, name: str) -> Any:
    key = to_primitives(value, name)
    if not isinstance(key, str | int | float | None):
        raise UsageError(
            f"{name} must be a string or a number to be saved, got a {type(key).__name__}. Save a list of its items."
        )
    if type(key) is int and key.bit_length() > MAX_BITS:
        raise UsageError(
            f"{name} must be an integer of at most {MAX_BITS} bits to be saved, got one of {key.bit_length():,} bits. "
            "Use a string."
        )
    return key


def _plain_mapping(value: Mapping[Any, Any], name: str) -> Any:
    plain = {_plain_key(key, f"a key of {name}"): to_primitives(held, f"{name}.{key}") for key, held in value.items()}
    same = type(value) in (dict, OrderedDict) and all(plain.get(key) is held for key, held in value.items())
    return value if same else plain


def _plain_series(value: Any, name: str) -> Any:
    plain = [to_primitives(held, f"{name}.{index}") for index, held in enumerate(value)]
    if type(value) in (list, tuple) and all(one is held for one, held in zip(plain, value, strict=True)):
        return value
    return next(made for kind, made in SERIES.items() if isinstance(value, kind))(plain)


def as_arrays(value: Any) -> Any:
    """Replace the tensors in nested dicts by NumPy arrays, which NumPy's generators require."""
    if isinstance(value, dict):
        return {key: as_arrays(held) for key, held in value.items()}
    return value.numpy() if isinstance(value, Tensor) else value

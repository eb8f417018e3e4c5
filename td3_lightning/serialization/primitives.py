"""Conversion to tensors and plain Python values for checkpoints."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from td3_lightning.errors import UsageError

VALUES = {type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device}


def to_primitives(value: Any, name: str) -> Any:
    """Convert a value to tensors and plain Python values; return the same object if it needs no conversion.

    NumPy numbers become Python numbers, arrays become tensors, other mappings become dicts, other sequences become
    lists or tuples, and sets become lists.

    Args:
        value: The value, which may be nested.
        name: Name of the value, for the error.

    Raises:
        UsageError: It holds a value of another type.
    """
    if type(value) in VALUES:
        return value
    if isinstance(value, Tensor) and value.layout is torch.strided:
        # A checkpoint cannot hold its class, its attributes or its repeated elements.
        is_plain = type(value) in (Tensor, Parameter) and not vars(value)
        is_stored = value.numel() * value.element_size() <= value.untyped_storage().nbytes()
        return value if is_plain and is_stored else value.detach().as_subclass(Tensor).clone()
    if isinstance(value, Mapping):
        return _plain_mapping(value, name)
    if isinstance(value, list | tuple | set | frozenset | deque):
        series = [to_primitives(held, f"{name}.{index}") for index, held in enumerate(value)]
        if type(value) in (list, tuple) and all(map(is_, series, value)):
            return value
        return tuple(series) if isinstance(value, tuple) else series
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic) and type(value.item()) in VALUES:
        return value.item()
    kind = type(value).__qualname__
    raise UsageError(
        f"{name} must be made of dense tensors, numbers, strings, lists and dicts to be saved, got a {kind}. Store its "
        "values instead."
    )


def _plain_mapping(value: Mapping[Any, Any], name: str) -> Any:
    plain = {
        to_primitives(key, f"a key of {name}"): to_primitives(held, f"{name}.{key}") for key, held in value.items()
    }
    if wrong := [key for key in plain if not isinstance(key, str | int | float | None)]:
        raise UsageError(
            f"a key of {name} must be a string or a number to be saved, got {wrong[0]!r}. Save a list of the items."
        )
    same = type(value) in (dict, OrderedDict) and all(plain.get(key) is held for key, held in value.items())
    return value if same else plain


def as_arrays(value: Any) -> Any:
    """Replace the tensors in nested dicts by NumPy arrays, which NumPy's generators require."""
    if isinstance(value, dict):
        return {key: as_arrays(held) for key, held in value.items()}
    return value.numpy() if isinstance(value, Tensor) else value

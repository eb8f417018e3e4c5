"""Conversion to tensors and plain Python values, which are all that a checkpoint holds."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from td3_lightning.errors import UsageError

VALUES = {type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device}


SERIES: dict[type, type] = {list: list, tuple: tuple, set: set, frozenset: set, deque: list}  # and what they become


def to_primitives(value: Any, name: str) -> Any:
    """A value as what a checkpoint may hold, the same object if it is that already.

    Numbers of numpy become Python's, its arrays tensors; other mappings become dicts, other sequences lists, and
    paths texts.

    Args:
        value: The value, however deep.
        name: What it is called, for the sentence.

    Raises:
        UsageError: There is something else in it.
    """
    if isinstance(value, Tensor) or type(value) in VALUES:
        return value
    if isinstance(value, Mapping):
        return _plain_mapping(value, name)
    if isinstance(value, tuple(SERIES)):
        return _plain_series(value, name)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic) and type(value.item()) in VALUES:
        return value.item()
    if isinstance(value, Enum):
        return to_primitives(value.value, name)
    if isinstance(value, PurePath):
        return str(value)
    raise UsageError(
        f"{name} is a {type(value).__qualname__}, which no checkpoint can hold, as it might run code when it is "
        "loaded; keep tensors, numbers, texts, lists and dicts in its place."
    )


def _plain_mapping(value: Mapping[Any, Any], name: str) -> Any:
    plain = {
        to_primitives(key, f"a key of {name}"): to_primitives(held, f"{name}.{key}") for key, held in value.items()
    }
    same = type(value) in (dict, OrderedDict) and all(plain.get(key) is held for key, held in value.items())
    return value if same else plain


def _plain_series(value: Any, name: str) -> Any:
    plain = [to_primitives(held, f"{name}.{index}") for index, held in enumerate(value)]
    if type(value) in (list, tuple, set) and all(one is held for one, held in zip(plain, value, strict=True)):
        return value
    return next(made for kind, made in SERIES.items() if isinstance(value, kind))(plain)


def as_arrays(value: Any) -> Any:
    """Plain dicts with arrays of numpy in place of their tensors, as its generators want them."""
    if isinstance(value, dict):
        return {key: as_arrays(held) for key, held in value.items()}
    return value.numpy() if isinstance(value, Tensor) else value

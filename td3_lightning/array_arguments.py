"""NumPy numbers and arrays as arguments on the command line: numbers and lists, which checkpoints can hold."""

from typing import Any, SupportsFloat

import numpy as np
from jsonargparse.typing import register_type


def register_array_arguments() -> None:
    """Accept numbers and lists of numbers for parameters of NumPy types, such as those of Gymnasium's wrappers.

    The values stay plain. `env_factory.wrapped` converts lists to arrays when it makes the wrapper.
    """
    for kind in (np.floating, np.integer, SupportsFloat):
        register_type(kind, _same, _number, type_check=_is_number)
    register_type(np.ndarray, _same, _numbers, type_check=_are_numbers)


def _same(value: Any) -> Any:
    return value


def _number(value: Any) -> Any:
    if not _is_number(value):
        raise ValueError(f"Expected a number, got {value!r}")
    return value


def _numbers(value: Any) -> Any:
    if not _are_numbers(value):
        raise ValueError(f"Expected a number or a list of numbers, got {value!r}")
    return value


def _is_number(value: Any, kind: object = None) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_numbers(value: Any, kind: object = None) -> bool:
    return _is_number(value) or (isinstance(value, list) and all(map(_are_numbers, value)))

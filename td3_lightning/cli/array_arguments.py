"""NumPy numbers and arrays as arguments on the command line, given as numbers and lists."""

from typing import Any, SupportsFloat

import numpy as np
import yaml
from jsonargparse.typing import register_type

from td3_lightning.errors import OTHER_YAML_ERRORS


def register_array_arguments() -> None:
    """Accept numbers and lists of numbers for parameters of NumPy types, such as those of Gymnasium's wrappers.

    The values stay lists, because checkpoints contain no arrays. `envs.make` converts them when it creates the wrapper.
    """
    for kind in (np.floating, np.integer, SupportsFloat):
        register_type(kind, _same, _number, type_check=_is_number)
    register_type(np.ndarray, _same, _numbers, type_check=_are_numbers)


def _same(value: Any) -> Any:
    return value


def _number(value: Any) -> Any:
    number = _read(value)
    if not _is_number(number):
        raise ValueError(f"Expected a number, got {value!r}")
    return number


def _numbers(value: Any) -> Any:
    numbers = _read(value)
    if not _are_numbers(numbers):
        raise ValueError(f"Expected a number or a list of numbers, got {value!r}")
    return numbers


def _read(value: Any) -> Any:
    """Convert text, for example "[-1.0, 1e-3]". YAML does not read 1e-3 as a number."""
    if isinstance(value, list | tuple):
        return [_read(one) for one in value]
    if not isinstance(value, str):
        return value
    try:
        if value.strip().startswith("["):
            return _read(yaml.safe_load(value))
        return float(value) if any(sign in value.lower() for sign in ".en") else int(value)
    except (yaml.YAMLError, *OTHER_YAML_ERRORS):
        return value


def _is_number(value: Any, kind: object = None) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_numbers(value: Any, kind: object = None) -> bool:
    return _is_number(value) or (isinstance(value, list) and all(map(_are_numbers, value)))

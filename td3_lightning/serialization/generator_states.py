"""Checks of the states of random generators."""

import copy
from typing import Any

import numpy as np
import torch

from td3_lightning.serialization import values as form
from td3_lightning.serialization.primitives import as_arrays
from td3_lightning.serialization.values import InvalidValueError

BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
BUFFERED = {"MT19937": ("pos", 624), "Philox": ("buffer_pos", 4)}  # positions that NumPy does not check


def torch_generator(value: Any, name: str) -> None:
    """Check for the state of a torch generator."""
    form.check_tensor(value, name)
    try:
        torch.Generator().set_state(value.contiguous())
    except (RuntimeError, TypeError) as error:
        raise InvalidValueError(name, "the state of a torch generator", value) from error


def numpy_generator(value: Any, name: str) -> None:
    """Check for the state of a NumPy bit generator, or of a `RandomState` that uses it."""
    form.mapping(value, name)
    kind = value.get("bit_generator")
    if not isinstance(kind, str) or kind not in BIT_GENERATORS:
        raise InvalidValueError(f"{name}.bit_generator", f"one of {', '.join(BIT_GENERATORS)}", kind)
    generator = np.random.RandomState(getattr(np.random, kind)())
    try:
        generator.set_state(as_arrays(copy.deepcopy(value)))
    except (TypeError, ValueError, KeyError, OverflowError, IndexError) as error:
        raise InvalidValueError(name, f"the state of a {kind} generator", value) from error
    if kind in BUFFERED:
        place, most = BUFFERED[kind]
        position = value["state"][place] if kind == "MT19937" else value[place]
        if not isinstance(position, int) or not 0 <= position <= most:
            raise InvalidValueError(f"{name}.{place}", f"an integer from 0 to {most}", position)

"""States of the global random generators, which an environment may use instead of `np_random`."""

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMPY, LENGTH = "MT19937", 624  # the algorithm of np.random, and the numbers in its state
VERSION = 3  # of Python's state
States = dict[str, NDArray[Any]]


def generator_states() -> States:
    """Return the states of `random`, of `np.random` and, if it is imported, of `torch` on the CPU, one array each."""
    _, numbers, gauss = random.getstate()
    states = {"Python": np.array([*numbers, gauss is not None, gauss or 0.0])}
    found: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    if found["bit_generator"] == NUMPY:  # it can be replaced
        own = found["state"]
        states["NumPy"] = np.array([*own["key"], own["pos"], found["has_gauss"], found["gauss"]])
    if "torch" in sys.modules:  # the workers do not import it
        states["PyTorch"] = sys.modules["torch"].get_rng_state().numpy().copy()
    return states


def set_generators(states: Mapping[str, NDArray[Any]]) -> None:
    """Set the generators whose states are given to the results of `generator_states`."""
    if "Python" in states:
        *numbers, has_gauss, gauss = states["Python"].tolist()
        random.setstate((VERSION, tuple(map(int, numbers)), gauss if has_gauss else None))
    if "NumPy" in states:
        *key, position, has_gauss, gauss = states["NumPy"].tolist()
        place = min(max(int(position), 0), LENGTH)  # NumPy does not check it
        np.random.set_state((NUMPY, np.array(key, np.uint32), place, int(has_gauss), gauss))  # noqa: NPY002
    if "PyTorch" in states and "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.set_rng_state(torch.from_numpy(states["PyTorch"].copy()))


def changed(one: States, other: States) -> list[str]:
    """Return the names of the generators that both contain in different states."""
    return [name for name in one if not np.array_equal(one[name], other.get(name, one[name]))]

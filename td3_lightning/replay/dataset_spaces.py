"""Structured observations in Minari datasets: descriptions of their spaces, names and values of their arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Space, Tuple, unflatten
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from td3_lightning.serialization.observation_parts import leaves

Description = Mapping[str, Any]


def describe_minari(space: Any) -> dict[str, Any]:
    """Return the description of a space that Minari has written as JSON, as `describe_space` does for a space.

    Raises:
        LookupError, TypeError, ValueError: The JSON is no space that can be flattened.
    """
    kind = space["type"]
    if kind == "Dict":
        return {"type": kind, "parts": [[name, describe_minari(part)] for name, part in space["subspaces"].items()]}
    if kind == "Tuple":
        return {"type": kind, "parts": [describe_minari(part) for part in space["subspaces"]]}
    if kind == "Discrete":
        return {"type": kind, "n": space["n"], "start": space["start"]}
    if kind == "MultiDiscrete":
        nvec, start = np.array(space["nvec"]), np.array(space["start"])
        numbers = {"nvec": nvec.reshape(-1).tolist(), "start": start.reshape(-1).tolist()}
        return {"type": kind, "shape": list(nvec.shape), **numbers}
    if kind == "MultiBinary":
        return {"type": kind, "shape": [space["n"]] if isinstance(space["n"], int) else list(space["n"])}
    if kind == "Box":
        return {"type": kind, "shape": list(space["shape"])}
    raise ValueError(f"a space of type {kind}")


def are_equal(one: Description, other: Description) -> bool:
    """Return whether two spaces are equal up to the order of the keys of their dicts."""
    if one["type"] == other["type"] == "Dict":
        ours, theirs = dict(one["parts"]), dict(other["parts"])
        return ours.keys() == theirs.keys() and all(are_equal(ours[name], theirs[name]) for name in ours)
    if one["type"] == other["type"] == "Tuple":
        same_length = len(one["parts"]) == len(other["parts"])
        return same_length and all(map(are_equal, one["parts"], other["parts"]))
    return one == other


def text_of(space: Description) -> str:
    """Describe a space in a few words, for errors: "(3,)", or the names of its parts with their types."""
    found = [(".".join(map(str, path)), part) for path, part in leaves(space)]
    texts = [(name, str(tuple(part["shape"])) if part["type"] == "Box" else part["type"]) for name, part in found]
    text = ", ".join(f"{name} {text}".strip() for name, text in texts)
    return text if len(text) <= 80 else f"{text[:77]}..."


def array_name(path: Sequence[Any]) -> str:
    """Return the name of the array of a part, given its keys and indices."""
    return "/".join(["observations", *(name if isinstance(name, str) else f"_index_{name}" for name in path)])


def is_storable(space: Space[Any]) -> bool:
    """Return whether a Minari dataset holds observations of a space exactly. It compresses pictures with loss."""
    from minari.dataset.minari_storage import is_image_space

    if isinstance(space, Dict):
        names = all(isinstance(name, str) and name not in ("", ".") and "/" not in name for name in space.spaces)
        return names and all(map(is_storable, space.spaces.values()))
    return all(map(is_storable, space.spaces)) if isinstance(space, Tuple) else not is_image_space(space)


def structured(space: Space[Any], flat: NDArray[Any]) -> Any:
    """Return observations (n, obs_dim) as Minari stores them: each part of the space as an array (n, *shape)."""
    rows = [unflatten(space, row) for row in flat]
    empty: Any = create_empty_array(space, len(rows))
    return concatenate(space, rows, empty)

"""Flat observations from dicts, tuples and discrete numbers, without Gymnasium.

A space is described by plain data, such as {"type": "Discrete", "n": 3, "start": 0}. A dict or a tuple has "parts".
The order of the numbers is that of `gymnasium.spaces.flatten`.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from td3_lightning.errors import UsageError, require_rows, shown

KINDS = ("Dict", "Tuple", "Box", "MultiBinary", "Discrete", "MultiDiscrete")
FIX = "Use an observation of the policy's environment."


def describe_space(space: Any) -> dict[str, Any]:
    """Return the description of a space of Gymnasium that `gymnasium.spaces.flatten` accepts."""
    kind = next(base.__name__ for base in type(space).__mro__ if base.__name__ in KINDS)  # a subclass is like its base
    if kind == "Dict":  # a name may be a member of an enum or NumPy's text
        named = [(str.__str__(name) if isinstance(name, str) else int(name), part) for name, part in space.items()]
        return {"type": kind, "parts": [[name, describe_space(part)] for name, part in named]}
    if kind == "Tuple":
        return {"type": kind, "parts": [describe_space(part) for part in space]}
    if kind == "Discrete":
        return {"type": kind, "n": int(space.n), "start": int(space.start)}
    if kind == "MultiDiscrete":
        nvec, start = (np.asarray(each).reshape(-1).tolist() for each in (space.nvec, space.start))
        return {"type": kind, "shape": list(space.shape), "nvec": nvec, "start": start}
    return {"type": kind, "shape": list(space.shape)}


def leaves(space: Mapping[str, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """Yield the parts of a space that are neither dicts nor tuples, each with its names and indices."""
    if space["type"] not in ("Dict", "Tuple"):
        yield path, space
        return
    for name, part in space["parts"] if space["type"] == "Dict" else enumerate(space["parts"]):
        yield from leaves(part, (*path, name))


def leaf_numbers(space: Mapping[str, Any], values: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers (n, size) of n values (n, *shape) of a part that is neither a dict nor a tuple.

    Raises:
        ValueError: A discrete number is out of its range.
    """
    rows = values.reshape(len(values), prod(values.shape[1:]))
    if space["type"] == "Discrete":
        return _one_hot(rows, [space["n"]], [space["start"]])
    return _one_hot(rows, space["nvec"], space["start"]) if space["type"] == "MultiDiscrete" else rows


def flatten(space: Mapping[str, Any], obs: Any, name: str = "obs") -> NDArray[np.float32]:
    """Return the numbers of one observation, (obs_dim,).

    Args:
        space: Description of the space.
        obs: Observation in the structure of the space.
        name: Name of the observation in errors.

    Raises:
        UsageError: The observation does not have that structure.
    """
    if space["type"] == "Dict":
        names = [part for part, _ in space["parts"]]
        if not isinstance(obs, Mapping) or obs.keys() != set(names):
            got = list(obs) if isinstance(obs, Mapping) else shown(obs)
            raise UsageError(f"{name} must be a dict of {', '.join(map(str, names))}, got {got}. {FIX}")
        return np.concatenate([flatten(part, obs[each], f"{name}[{each!r}]") for each, part in space["parts"]])
    if space["type"] == "Tuple":
        parts = space["parts"]
        if not isinstance(obs, tuple | list) or len(obs) != len(parts):
            raise UsageError(f"{name} must be a tuple of {len(parts)} parts, got {shown(obs)}. {FIX}")
        named = enumerate(zip(parts, obs, strict=True))
        return np.concatenate([flatten(part, each, f"{name}[{at}]") for at, (part, each) in named])
    shape, numbers = tuple(space.get("shape", ())), np.asarray(obs)
    if numbers.shape != shape or numbers.dtype.kind not in "biuf":
        raise UsageError(f"{name} must be numbers of shape {shape}, got {shown(obs)}. {FIX}")
    try:
        return np.asarray(leaf_numbers(space, numbers[None])[0], np.float32)
    except ValueError as error:
        raise UsageError(f"{name} {error}. {FIX}") from error


def flat_rows(space: Mapping[str, Any] | None, obs: Any, obs_dim: int) -> NDArray[Any]:
    """Return flat observations, given these or one observation in the structure of a space.

    Args:
        space: Description of the space; None accepts flat observations only.
        obs: Observations (obs_dim,) or (n, obs_dim), or one in the structure.
        obs_dim: Numbers in a flat observation.

    Raises:
        UsageError: The observations have another shape or structure.
    """
    if space is not None and is_structured(space, obs):
        obs = flatten(space, obs)
    return require_rows("obs", obs, obs_dim)


def is_structured(space: Mapping[str, Any], obs: Any) -> bool:
    """Return whether an observation has the structure of a space, rather than that of flat numbers."""
    if space["type"] in ("Dict", "Tuple"):
        return isinstance(obs, Mapping | tuple)
    if set(space.get("nvec", ())) == {1}:  # flat observations have the same shape
        return False
    try:
        return bool(np.shape(obs) == tuple(space.get("shape", ())))
    except ValueError:  # a ragged list
        return False


def _one_hot(columns: NDArray[Any], sizes: list[int], starts: list[int]) -> NDArray[np.float32]:
    parts = []
    for numbers, size, start in zip(columns.T, sizes, starts, strict=True):
        part = numbers[:, None] == np.arange(start, start + size)
        if not (known := part.any(axis=1)).all():
            raise ValueError(f"must be integers from {start} to {start + size - 1}, got {numbers[~known][0].item()}")
        parts.append(part)
    return np.concatenate(parts, axis=1, dtype=np.float32)

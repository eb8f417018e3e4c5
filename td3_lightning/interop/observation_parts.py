"""Flat observations from dicts, tuples and discrete numbers, without Gymnasium.

A space is described by plain data, such as {"type": "Discrete", "n": 3, "start": 0}. A dict or a tuple has "parts".
The order of the numbers is that of `gymnasium.spaces.flatten`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from td3_lightning.errors import UsageError, shown


def describe_space(space: Any) -> dict[str, Any]:
    """Return the description of a space of Gymnasium that `gymnasium.spaces.flatten` accepts."""
    kind = type(space).__name__
    if kind == "Dict":
        return {"type": kind, "parts": [[name, describe_space(part)] for name, part in space.spaces.items()]}
    if kind == "Tuple":
        return {"type": kind, "parts": [describe_space(part) for part in space.spaces]}
    if kind == "Discrete":
        return {"type": kind, "n": int(space.n), "start": int(space.start)}
    if kind == "MultiDiscrete":
        nvec, start = (np.asarray(each).reshape(-1).tolist() for each in (space.nvec, space.start))
        return {"type": kind, "shape": list(space.shape), "nvec": nvec, "start": start}
    return {"type": kind, "shape": list(space.shape)}


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
            raise _refusal(name, f"a dict of {', '.join(names)}", list(obs) if isinstance(obs, Mapping) else obs)
        return np.concatenate([flatten(part, obs[each], f"{name}[{each!r}]") for each, part in space["parts"]])
    if space["type"] == "Tuple":
        parts = space["parts"]
        if not isinstance(obs, tuple | list) or len(obs) != len(parts):
            raise _refusal(name, f"a tuple of {len(parts)} parts", obs)
        named = enumerate(zip(parts, obs, strict=True))
        return np.concatenate([flatten(part, each, f"{name}[{at}]") for at, (part, each) in named])
    shape = tuple(space.get("shape", ()))
    try:
        numbers = np.asarray(obs)
    except Exception as error:  # a ragged list, or a tensor on a GPU
        raise _refusal(name, f"numbers of shape {shape}", obs) from error
    if numbers.shape != shape or numbers.dtype.kind not in "biuf":
        raise _refusal(name, f"numbers of shape {shape}", obs)
    if space["type"] == "Discrete":
        return _one_hot(numbers.reshape(1), [space["n"]], [space["start"]], name)
    if space["type"] == "MultiDiscrete":
        return _one_hot(numbers.reshape(-1), space["nvec"], space["start"], name)
    return numbers.reshape(-1).astype(np.float32)


def _one_hot(numbers: NDArray[Any], sizes: list[int], starts: list[int], name: str) -> NDArray[np.float32]:
    parts = []
    for number, size, start in zip(numbers.tolist(), sizes, starts, strict=True):
        if number not in range(start, start + size):
            raise _refusal(name, f"integers from {start} to {start + size - 1}", number)
        parts.append(np.eye(size, dtype=np.float32)[int(number) - start])
    return np.concatenate(parts)


def is_structured(space: Mapping[str, Any], obs: Any) -> bool:
    """Return whether an observation has the structure of a space, rather than that of flat numbers."""
    if space["type"] in ("Dict", "Tuple"):
        return isinstance(obs, Mapping | tuple)
    try:
        return bool(np.shape(obs) == tuple(space.get("shape", ())))
    except ValueError:  # a ragged list
        return False


def _refusal(name: str, expected: str, got: Any) -> UsageError:
    return UsageError(f"{name} must be {expected}, got {shown(got)}. Use an observation of the policy's environment.")

"""Flat observations of environments that observe dicts, tuples or discrete numbers."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from td3_lightning.serialization.observation_parts import describe_space


def with_flat_observations(env: gym.Env) -> gym.Env:
    """Concatenate the parts of each observation, as Gymnasium's `FlattenObservation` does. A `Box` is unchanged.

    The order is that of `env.observation_space`. A `Dict` that is made from a dict has sorted keys. Discrete parts
    become one-hot. Spaces with text, graphs, sequences or frames stay as they are.
    """
    space = getattr(env, "observation_space", None)
    if isinstance(space, Box) or not _can_be_flat(space):
        return env
    return FlatObservations(env)


class FlatObservations(gym.wrappers.FlattenObservation):
    """Concatenate the parts of each observation. Only this package adds this wrapper, after those of the user."""

    def observation(self, observation: Any) -> Any:
        """Return the numbers of an observation, after checking each part, because numbers of a wrong part would shift.

        Raises:
            ValueError: A part has another shape than its space, or a discrete one is out of range.
        """
        _check_part(self.env.observation_space, observation, "the observation")
        return super().observation(observation)


def _check_part(space: Space[Any], value: Any, name: str) -> None:
    if isinstance(space, Dict):
        for key, part in space.spaces.items():
            _check_part(part, value[key], f"{name}[{key!r}]")
    elif isinstance(space, Tuple):
        if len(value) != len(space.spaces):
            raise ValueError(f"{name} has {len(value)} parts, expected {len(space.spaces)}")
        for index, part in enumerate(space.spaces):
            _check_part(part, value[index], f"{name}[{index}]")
    elif np.shape(value) != (space.shape or ()):
        raise ValueError(f"{name} has shape {np.shape(value)}, expected {space.shape}")
    elif isinstance(space, Discrete | MultiDiscrete):
        places = np.asarray(value) - space.start
        size = space.n if isinstance(space, Discrete) else space.nvec
        if not ((places >= 0) & (places < size)).all():
            raise ValueError(f"{name} is {value}, which is not in {space}")


def observation_parts(env: gym.Env) -> dict[str, Any] | None:
    """Describe the observations before this package flattened them, see `describe_space`; None if it did not."""
    space = structured_space(env)
    return None if space is None else describe_space(space)


def structured_space(env: gym.Env) -> Space[Any] | None:
    """Return the space of the observations before this package flattened them; None if it did not."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, FlatObservations):
            return env.env.observation_space
        env = env.env
    return None


def _can_be_flat(space: Space[Any] | None) -> bool:
    if isinstance(space, Dict | Tuple):
        parts = space.spaces.values() if isinstance(space, Dict) else space.spaces
        return bool(parts) and all(map(_can_be_flat, parts))
    if isinstance(space, Box):
        return not (len(space.shape) == 3 and space.dtype == np.uint8)
    return isinstance(space, Discrete | MultiDiscrete | MultiBinary)

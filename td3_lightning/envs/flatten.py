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

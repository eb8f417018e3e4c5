"""Wrappers that add noise to observations and actions, to train robust policies and to measure how robust they are."""

from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from td3_lightning.errors import require_float

MAX_STD = 1e6  # much more noise exceeds float32


class Noise(gym.Wrapper):
    """Draw noise that depends only on the environment's random generator, so that episodes can be repeated.

    Args:
        env: The environment to wrap. Its observation and action spaces must be a `Box`.
        std: Standard deviation of the noise, in [0, 1e6].

    Raises:
        UsageError: The standard deviation is out of range.
    """

    def __init__(self, env: gym.Env, std: float) -> None:
        super().__init__(env)
        name = f"std of {type(self).__name__}"
        self.std = require_float(name, std, least=0, most=MAX_STD, fix="Use 0 for no noise.")
        self._rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and derive the seed of the episode's noise from its random generator."""
        obs, info = self.env.reset(seed=seed, options=options)
        rng: Any = self.np_random
        is_old = isinstance(rng, np.random.RandomState)  # that of dm_control
        self._rng = np.random.default_rng(rng.randint(2**31) if is_old else rng.integers(2**63))
        return obs, info

    def draw(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return Gaussian noise of mean 0."""
        return self.std * self._rng.standard_normal(shape)


class ObservationNoise(Noise):
    """Multiply each number of an observation by 1 plus Gaussian noise. Integers are rounded and stay in their type."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and return the observation with noise."""
        obs, info = super().reset(seed=seed, options=options)
        return self._noisy(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and return the observation with noise."""
        obs, *rest = self.env.step(action)
        return (self._noisy(obs), *rest)

    def _noisy(self, obs: Any) -> Any:
        noisy, dtype = obs * (1.0 + self.draw(np.shape(obs))), cast(Any, self.observation_space.dtype)
        if np.issubdtype(dtype, np.integer):  # a cast would truncate, and wrap around: bytes of 260 would become 4
            limits = np.iinfo(dtype)
            noisy = np.clip(np.rint(noisy), limits.min, limits.max)
        return np.asarray(noisy, dtype)


class ActionNoise(Noise):
    """Add Gaussian noise to each number of an action, in units of its range, and clip the result to the bounds.

    Args:
        env: The environment to wrap. Its observation and action spaces must be a `Box`, with finite bounds for actions.
        std: Standard deviation of the noise, in [0, 1e6].

    Raises:
        UsageError: The standard deviation is out of range.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step with the action with noise."""
        box = cast(Box, self.action_space)
        noisy = action + self.draw(box.shape) * (box.high - box.low)
        return self.env.step(np.clip(noisy, box.low, box.high).astype(box.dtype))

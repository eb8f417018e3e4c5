"""A wrapper that multiplies observations by random factors close to 1, to measure how robust a policy is."""

from typing import Any

import gymnasium as gym
import numpy as np


class ObservationNoise(gym.ObservationWrapper):
    """Multiply every number of an observation by 1 plus Gaussian noise.

    The noise depends on the seed of the reset only, so that a test can be repeated.

    Args:
        env: An environment with observations in a Box.
        std: Standard deviation of the relative noise.
    """

    def __init__(self, env: gym.Env, std: float) -> None:
        super().__init__(env)
        self.std, self.rng = std, np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and, if a seed is given, the noise."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def observation(self, observation: Any) -> Any:
        """Return the observation with noise, in its own dtype."""
        noisy = observation * (1 + self.std * self.rng.standard_normal(observation.shape))
        return noisy.astype(observation.dtype)

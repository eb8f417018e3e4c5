"""Environment whose steps take a given time."""

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

SIZE = 17  # numbers in an observation, as of HalfCheetah


class Busy(gym.Env[Any, Any]):
    """Compute for a given CPU time in every step, or sleep.

    Args:
        milliseconds: Time of a step.
        sleeps: Sleep, as if another machine computed the step.
    """

    def __init__(self, milliseconds: float, sleeps: bool = False) -> None:
        self.seconds, self.sleeps = milliseconds / 1e3, sleeps
        self.observation_space, self.action_space = Box(-1, 1, (SIZE,)), Box(-1, 1, (6,))
        self._obs = np.zeros(SIZE, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the observation."""
        super().reset(seed=seed)
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Spend the time, and return the observation."""
        if self.sleeps:
            time.sleep(self.seconds)
        end = time.thread_time() + self.seconds * (not self.sleeps)
        while time.thread_time() < end:
            pass
        return self._obs, 0.0, False, False, {}


gym.register("Busy-v0", "benchmarks.busy:Busy")

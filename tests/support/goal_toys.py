"""Small environments with goals."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict


class Walk(gym.Env[Any, Any]):
    """Move a point by at most 1 per axis to a goal, which ends the episode. A point beyond 4 falls."""

    parts = ("achieved_goal", "desired_goal", "observation")

    def __init__(self, length: int = 12) -> None:
        self.length = length
        spaces = {name: Box(-np.inf, np.inf, (2,), np.float64) for name in self.parts}
        self.observation_space = Dict(spaces)
        self.action_space = Box(-1, 1, (2,), np.float32)

    def _obs(self) -> Any:
        steps = np.array([self.steps, self.length], np.float64)
        whole = {"achieved_goal": self.place.copy(), "desired_goal": self.goal.copy(), "observation": steps}
        return {name: whole[name] for name in self.parts}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.goal, self.steps = np.zeros(2), self.np_random.uniform(-3, 3, 2), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.place, self.steps = self.place + action, self.steps + 1
        fell = bool(np.abs(self.place).max() > 4)
        reached = self.compute_terminated(self.place, self.goal, {})
        reward = self.compute_reward(self.place, self.goal, {})
        return self._obs(), reward, bool(reached or fell), self.steps >= self.length, {"is_success": bool(reached)}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.5).astype(np.float64)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return np.linalg.norm(achieved_goal - desired_goal, axis=-1) <= 0.5


class Single(Walk):
    """Accept one goal at a time, without an error for batches, as the mazes of Gymnasium-Robotics."""

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return bool(np.linalg.norm(achieved_goal - desired_goal) <= 0.5)


class Endless(Walk):
    """Define no terminations."""

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return False


class Aimless(Walk):
    """Observe no desired goal."""

    parts = ("achieved_goal", "observation")

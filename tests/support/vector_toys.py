"""Small vector environments with predictable results."""

from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from toys import Seeded


class Mixed(Seeded):
    """End an episode after 4 to 8 steps, by a termination or a truncation. The reward contains the action."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed)
        self.end = ["terminated", "truncated"][int(self.np_random.integers(2))]
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + float(action[0]), terminated, truncated, info


gym.register(id="toys/Mixed-v0", entry_point=Mixed, disable_env_checker=True)


def sync(env_id: Any, num_envs: int, mode: str = "NextStep", **kwargs: Any) -> Any:
    """Make a vector environment that steps environments in turn."""
    make = partial(gym.make, env_id, **kwargs) if isinstance(env_id, str) else partial(env_id, **kwargs)
    return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode(mode), copy=False)


class Faulty(VectorWrapper):
    """Replace one result of the step `at`: 0 is the observations, 4 is the info."""

    def __init__(self, env: Any, field: int, value: Any, at: int = 3) -> None:
        super().__init__(env)
        self.field, self.value, self.at, self.steps = field, value, at, 0

    def step(self, actions: Any) -> Any:
        self.steps += 1
        results = list(self.env.step(actions))
        if self.steps >= self.at:
            results[self.field] = self.value(results[self.field])
        return tuple(results)


def faulty(env_id: Any, num_envs: int, field: int, value: Any, mode: str = "NextStep") -> Any:
    """Make a vector environment that returns something invalid from its third step on."""
    return Faulty(sync(env_id, num_envs, mode=mode), field, value)

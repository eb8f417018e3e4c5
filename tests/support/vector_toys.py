"""Small vector environments with predictable results, in every autoreset mode."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
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


class Simulator(VectorWrapper):
    """Use tensors, and final observations of all environments under an older name, as a GPU simulator does."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return torch.from_numpy(obs), info

    def step(self, actions: Any) -> Any:
        assert isinstance(actions, torch.Tensor)
        *results, info = self.env.step(actions.numpy())
        if "final_obs" in info:
            mask = info.pop("_final_obs")
            final = np.where(
                mask[:, None], np.stack([np.full(3, np.nan) if o is None else o for o in info["final_obs"]]), 0
            )
            info = {"final_observation": torch.from_numpy(final), "_final_observation": torch.from_numpy(mask)}
        return *map(torch.from_numpy, results), info


def simulator(env_id: Any, num_envs: int, **kwargs: Any) -> Any:
    """Make a vector environment that returns tensors."""
    return Simulator(sync(env_id, num_envs, mode="SameStep", **kwargs))


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


def faulty(env_id: Any, num_envs: int, field: int, value: Any, mode: str = "SameStep") -> Any:
    """Make a vector environment that returns something invalid from its third step on."""
    return Faulty(sync(env_id, num_envs, mode=mode), field, value)

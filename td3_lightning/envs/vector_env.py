"""Training environments that are stepped together in one process."""

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from td3_lightning.envs.lifetime import close_env
from td3_lightning.envs.reports import ReportNames
from td3_lightning.envs.restorable import RestorableEnv
from td3_lightning.seeding import derive_seed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """What one step of all training environments brought."""

    last_obs: NDArray[np.float32]  # (num_envs, obs_dim), what the step led to, at an episode's end too
    reward: list[float]  # one for each environment, as are the next two
    terminated: list[bool]
    truncated: list[bool]
    reports: list[dict[str, float]]  # one for each episode that ended


class TrainingVectorEnv:
    """Environments that step together and begin again by themselves, in the step that ends an episode.

    Gymnasium's `SyncVectorEnv` does the same in twice the time.

    Args:
        make: Makes one environment.
        num_envs: How many.
    """

    def __init__(self, make: Callable[[], gym.Env], num_envs: int) -> None:
        self.envs: list[RestorableEnv] = []
        try:
            self._make(make, num_envs)
        except BaseException:  # whatever a constructor may raise
            self.close()
            raise
        self._names = ReportNames()
        self.obs = np.empty((0, 0), np.float32)  # (num_envs, obs_dim), what the next action answers

    def _make(self, make: Callable[[], gym.Env], num_envs: int) -> None:
        for index in range(num_envs):
            env = RestorableEnv(make())
            env.name = f"Environment {index} of {env.name}"
            self.envs.append(env)

    def reset(self, steps_before: int = 0) -> None:
        """Begins an episode in each environment, each seeded for itself, and for how many steps were taken before."""
        seeds = (derive_seed("training environment", index) for index in itertools.count(steps_before * len(self.envs)))
        self.obs = np.array([env.reset(seed=seed)[0] for env, seed in zip(self.envs, seeds, strict=False)], np.float32)

    def step(self, action: NDArray[np.float32]) -> Step:
        """Takes one action (num_envs, action_dim) in each environment; where an episode ends, the next begins."""
        last_obs, next_obs, rewards, terminations, truncations, reports = [], [], [], [], [], []
        for env, own_action in zip(self.envs, action, strict=True):
            obs, reward, terminated, truncated, _ = env.step(own_action)
            last_obs.append(obs)
            rewards.append(float(reward))
            terminations.append(terminated)
            truncations.append(truncated)
            if terminated or truncated:
                reports.append(self._names.kept(env.report))
                obs, _ = env.reset()
            next_obs.append(obs)
        self.obs = np.array(next_obs, np.float32)
        return Step(np.array(last_obs, np.float32), rewards, terminations, truncations, reports)

    def discard_episodes(self) -> None:
        """Gives the running episodes up; the next thing is a reset."""
        self.obs = self.obs[:0]

    def state_dict(self) -> dict[str, Any]:
        """The running episode of every environment."""
        return {"episodes": [env.state_dict() for env in self.envs if len(self.obs)]}

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Brings the episodes back; the numbers of the environments whose episode could not be."""
        if not state["episodes"]:  # they were given up
            return []
        pairs = zip(self.envs, state["episodes"], strict=True)
        lost = [index for index, (env, saved) in enumerate(pairs) if not env.load_state_dict(saved)]
        self.obs = np.stack([env.obs for env in self.envs]).astype(np.float32)
        return lost

    def close(self) -> None:
        """Close all environments, even if one of them fails."""
        for env in self.envs:
            close_env(env, env.name)

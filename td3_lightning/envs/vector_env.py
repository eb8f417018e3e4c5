"""Vector of training environments in one process."""

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
    """Hold the results of one step of all training environments."""

    last_obs: NDArray[np.float32]  # (num_envs, obs_dim), before any reset
    reward: list[float]  # one per environment, as for the next two fields
    terminated: list[bool]
    truncated: list[bool]
    reports: list[dict[str, float]]  # one per episode that ended


class TrainingVectorEnv:
    """Step several environments together, and reset each one in the step that ends its episode.

    Gymnasium's `SyncVectorEnv` does the same but takes twice the time.

    Args:
        make: Function that makes one environment.
        num_envs: Number of environments.
    """

    def __init__(self, make: Callable[[], gym.Env], num_envs: int) -> None:
        self.envs: list[RestorableEnv] = []
        try:
            self._make(make, num_envs)
        except BaseException:  # a constructor may raise anything
            self.close()
            raise
        self._names = ReportNames()
        self.obs = np.empty((0, 0), np.float32)  # (num_envs, obs_dim), the input of the next actions

    def _make(self, make: Callable[[], gym.Env], num_envs: int) -> None:
        for index in range(num_envs):
            env = RestorableEnv(make())
            env.name = f"Environment {index} of {env.name}"
            self.envs.append(env)

    def reset(self, steps_before: int = 0) -> None:
        """Start an episode in each environment.

        Each environment has its own seed, which also depends on the number of steps before.

        Args:
            steps_before: Steps per environment that the replay buffer contains.
        """
        seeds = (derive_seed("training environment", index) for index in itertools.count(steps_before * len(self.envs)))
        self.obs = np.array([env.reset(seed=seed)[0] for env, seed in zip(self.envs, seeds, strict=False)], np.float32)

    def step(self, action: NDArray[np.float32]) -> Step:
        """Step each environment, and reset those whose episode ends.

        Args:
            action: Actions (num_envs, action_dim).
        """
        last_obs, next_obs, rewards, terminations, truncations, reports = [], [], [], [], [], []
        for env, own_action in zip(self.envs, action, strict=True):
            obs, reward, terminated, truncated, _ = env.step(own_action)
            last_obs.append(obs)
            rewards.append(float(reward))
            terminations.append(terminated)
            truncations.append(truncated)
            if terminated or truncated:
                reports.append(self._names.limit(env.report))
                obs, _ = env.reset()
            next_obs.append(obs)
        self.obs = np.array(next_obs, np.float32)
        return Step(np.array(last_obs, np.float32), rewards, terminations, truncations, reports)

    def discard_episodes(self) -> None:
        """Discard the running episodes. The next call must be `reset`."""
        self.obs = self.obs[:0]

    def state_dict(self) -> dict[str, Any]:
        """Return the running episode of every environment."""
        return {"episodes": [env.state_dict() for env in self.envs if len(self.obs)]}

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Restore the running episodes.

        Returns:
            The indices of the environments whose episode could not be restored.
        """
        if not state["episodes"]:  # they were discarded
            return []
        pairs = zip(self.envs, state["episodes"], strict=True)
        lost = [index for index, (env, saved) in enumerate(pairs) if not env.load_state_dict(saved)]
        self.obs = np.stack([env.obs for env in self.envs]).astype(np.float32)
        return lost

    def close(self) -> None:
        """Close all environments, even if one of them fails."""
        for env in self.envs:
            close_env(env, env.name)

"""Discounted returns that the Collector has computed and the agent's reward normalizer has not seen yet."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from td3_lightning.algorithm.normalization import RunningRewardNormalizer
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.env_group import Step
from td3_lightning.errors import UsageError
from td3_lightning.training.data_module import ReplayData


class UnseenReturns:
    """Collect the discounted return so far of each environment at each step, until the next update.

    The return of an environment is R <- gamma * R + reward, and starts with 0 in each episode, as in Gymnasium and
    Stable-Baselines3.
    """

    def __init__(self) -> None:
        self._running = np.empty(0)  # (num_envs,), of the running episodes
        self._rows: list[NDArray[np.float64]] = []  # (n,) each

    def begin(self, episode_steps: Sequence[int]) -> None:
        """Start with 0 in each environment whose episode is new.

        Args:
            episode_steps: Steps in the running episode of each environment.
        """
        is_running = np.array(episode_steps) > 0
        before = self._running if len(self._running) == len(is_running) else np.zeros(len(is_running))
        self._running = np.where(is_running, before, 0.0)

    def add(self, step: Step, gamma: float) -> None:
        """Add the rewards of a step of all environments, without those that were reset instead of stepped."""
        returns = gamma * self._running + step.reward
        self._rows.append(returns[step.stepped])
        ended = np.logical_or(step.terminated, step.truncated)
        self._running = np.where(ended if step.resets is None else ended | step.resets, 0.0, returns)

    def pass_to(self, module: TD3) -> None:
        """Update the reward normalizer of an agent that has one. Every process must call this method."""
        if isinstance(module.reward_normalizer, RunningRewardNormalizer):
            module.reward_normalizer.update(torch.from_numpy(self._stacked()[:, None]))
            self._rows = []

    def state_dict(self) -> dict[str, Any]:
        """Return the returns if there are any."""
        if not len(self._running):
            return {}
        return {"returns": torch.from_numpy(self._stacked()), "running_returns": torch.from_numpy(self._running.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the returns."""
        if "running_returns" in state:
            self._rows, self._running = [state["returns"].numpy()], state["running_returns"].numpy()

    def _stacked(self) -> NDArray[np.float64]:
        return np.concatenate([np.empty(0), *self._rows])


def check_rewards_are_raw(module: TD3, data: ReplayData) -> None:
    """Raise `UsageError` if an agent normalizes rewards of a dataset, or rewards that have a factor."""
    if not module.settings.normalize_rewards:
        return
    if data.offline:
        raise UsageError(
            "model.normalize_rewards must be false with data.offline, got true. Use a constant data.reward_scale: the "
            "estimate requires environment steps."
        )
    if data.replay.reward_scale != 1:
        raise UsageError(
            f"data.reward_scale must be 1 with model.normalize_rewards, got {data.replay.reward_scale}. Omit one of "
            "them."
        )

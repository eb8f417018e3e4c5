"""Observations and returns that the Collector has stored and the agent's normalizers have not seen yet."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.algorithm.normalization import RunningNormalizer, RunningRewardNormalizer
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.vector_env import Step
from td3_lightning.errors import UsageError
from td3_lightning.training.data_module import ReplayData


class NormalizerInputs:
    """Collect the observations and the returns of the training environments, and pass them on before an update."""

    def __init__(self) -> None:
        self.observations, self.returns = UnseenObservations(), UnseenReturns()

    def begin(self, module: TD3, data: ReplayData) -> None:
        """Start, or continue, the running episodes."""
        if module.settings.normalize_rewards:
            # After a step that has begun, an episode may be new, but its return belongs to the one before.
            self.returns.begin([1] * data.num_envs if data.envs.is_stepping else data.envs.episode_steps())

    def add(self, module: TD3, data: ReplayData, step: Step) -> None:
        """Add a step of all environments, for the normalizers that exist."""
        if module.settings.normalize_observations:
            self.observations.add(step)
        if module.settings.normalize_rewards:
            self.returns.add(step, data.replay.gamma)

    def pass_to(self, module: TD3) -> None:
        """Update the agent's normalizers. Every process must call this method."""
        self.observations.pass_to(module)
        self.returns.pass_to(module)

    def state_dict(self) -> dict[str, Any]:
        """Return what the normalizers have not seen."""
        return {**self.observations.state_dict(), **self.returns.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what the normalizers have not seen."""
        self.observations.load_state_dict(state)
        self.returns.load_state_dict(state)


class UnseenObservations:
    """Collect each stored observation once, and pass all of them to the agent's normalizer before the next update.

    The statistics therefore change only with the weights: a policy does not change within the episodes that are
    collected with it.
    """

    def __init__(self) -> None:
        self._rows: list[NDArray[np.float32]] = []  # (n, obs_dim) each

    def add(self, step: Step) -> None:
        """Add the observations before a step, and the last ones of the episodes that it ends."""
        self._rows.append(step.obs if step.resets is None else step.obs[~step.resets])
        ends = np.logical_or(step.terminated, step.truncated)
        if ends.any():
            self._rows.append(step.last_obs[ends])

    def add_dataset(self, obs: NDArray[np.float32]) -> None:
        """Add all observations (n, obs_dim) of a dataset."""
        if len(obs):
            self._rows.append(obs)

    def pass_to(self, module: TD3) -> None:
        """Update the normalizer of an agent that has one. Every process must call this method."""
        if isinstance(module.normalizer, RunningNormalizer):
            none = np.empty((0, module.obs_dim), np.float32)
            module.normalizer.update(_stacked([none, *self._rows]))
            self._rows = []

    def state_dict(self) -> dict[str, Any]:
        """Return the observations if there are any. Moments would depend on when the run was stopped."""
        return {"observations": _stacked(self._rows)} if self._rows else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the observations."""
        self._rows = [state["observations"].numpy()] if "observations" in state else []

    def check(self, module: TD3) -> None:
        """Raise `UsageError` if the observations of a checkpoint are not those of an agent."""
        for rows in self._rows:
            if rows.shape[1] != module.obs_dim:
                raise UsageError(
                    f"The Collector's observations must have {module.obs_dim} numbers, as those of the agent, got "
                    f"{rows.shape[1]}. Use a checkpoint that a run of this model has saved."
                )


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


def _stacked(rows: list[NDArray[np.float32]]) -> Tensor:
    return torch.from_numpy(np.concatenate(rows))

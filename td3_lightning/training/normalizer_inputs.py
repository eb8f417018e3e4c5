"""Observations that the Collector has stored and the agent's normalizer has not seen yet."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.algorithm.normalization import RunningNormalizer
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.vector_env import Step
from td3_lightning.errors import UsageError


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


def _stacked(rows: list[NDArray[np.float32]]) -> Tensor:
    return torch.from_numpy(np.concatenate(rows))

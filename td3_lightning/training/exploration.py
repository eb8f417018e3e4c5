"""Actions of training episodes."""

import numpy as np
from numpy.typing import NDArray

from td3_lightning.algorithm.exploration import as_noise, with_noise
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.errors import require_int
from td3_lightning.schedules import Schedule
from td3_lightning.seeding import derive_seed
from td3_lightning.training.divergence import check_action


class Exploration:
    """Choose random actions at first, then those of the policy plus Gaussian noise.

    Args:
        noise: Standard deviation of the noise relative to half the action range, or a schedule.
        random_steps: Environment steps with uniformly random actions.

    Raises:
        UsageError: A setting is out of range.
    """

    def __init__(self, noise: float | Schedule, random_steps: int) -> None:
        self.noise, self.random_steps = as_noise(noise), require_int("random_steps", random_steps, least=0)
        self.rng = np.random.default_rng(derive_seed("exploration"))

    def act(self, module: TD3, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return actions (num_envs, action_dim), clipped to the box, for observations (num_envs, obs_dim)."""
        low, high = module.action_box
        if module.env_steps < self.random_steps:
            return self.rng.uniform(low, high, (len(obs), len(low))).astype(np.float32)
        action = module.act(obs)
        check_action(action, module.updates)
        normal = self.rng.standard_normal(action.shape, dtype=np.float32)
        return with_noise(action, normal, self.noise(module.env_steps), module.action_box)

"""Actions of training episodes, and the number of steps that follow each other without an update."""

from typing import Any, Literal

import lightning as L
import numpy as np
from numpy.typing import NDArray

from td3_lightning.algorithm.exploration import as_noise, with_noise
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.episode import MAX_EPISODE_STEPS
from td3_lightning.envs.vector_env import Step
from td3_lightning.errors import EnvError, require_int
from td3_lightning.schedules import Schedule
from td3_lightning.seeding import derive_seed
from td3_lightning.training.data_module import MAX_STEPS, ReplayData
from td3_lightning.training.divergence import check_action
from td3_lightning.training.policy_checkpoint import PolicyCheckpoint


class Collection:
    """Collect steps until a number is reached, an episode ends, or the assessment of a `PolicyCheckpoint` is over."""

    def __init__(self, warmup_steps: int, collect: int | Literal["episode"]) -> None:
        fix = "Use 25000, for example. The first update requires a transition."
        self.warmup_steps = require_int("warmup_steps", warmup_steps, least=1, most=MAX_STEPS, fix=fix)
        self.collect = collect if collect == "episode" else require_int("collect", collect, 1, MAX_STEPS)
        self._policy_checkpoint: PolicyCheckpoint | None = None
        self._start = self._episodes = self._changed_at = 0  # env_steps, episodes and env_steps of the last change

    def setup(self, trainer: Any) -> None:
        """Find the `PolicyCheckpoint` of a run, if there is one."""
        found = (each for each in trainer.callbacks if isinstance(each, PolicyCheckpoint))
        self._policy_checkpoint = next(found, None)

    @property
    def is_assessing(self) -> bool:
        """Whether an assessment is in progress. Between two updates, this is so only in a run that stops."""
        return self._policy_checkpoint is not None and self._policy_checkpoint.assessment is not None

    def begin(self, module: TD3, data: ReplayData) -> None:
        """Begin, or continue the assessment in progress."""
        if self._policy_checkpoint is not None:
            self._policy_checkpoint.begin(module.updates, data.envs)
        self._start, self._episodes, self._changed_at = module.env_steps, module.episodes, module.env_steps

    def is_complete(self, module: TD3) -> bool:
        """Return whether enough steps were collected."""
        if self._policy_checkpoint is not None:
            return not self.is_assessing
        if self.collect == "episode":
            return module.episodes > self._episodes
        return module.env_steps - self._start >= int(self.collect)

    def add(self, trainer: L.Trainer, module: TD3, data: ReplayData, step: Step) -> None:
        """Add a step.

        Raises:
            EnvError: No episode ends within `MAX_EPISODE_STEPS` steps of each environment.
        """
        checkpoint = self._policy_checkpoint
        if step.reports and (checkpoint is None or checkpoint.add(step, trainer, module)):
            self._changed_at = module.env_steps
        elif checkpoint is None and self.collect != "episode":
            return
        elif module.env_steps - self._changed_at >= MAX_EPISODE_STEPS * data.num_envs:
            setting = "collector.collect episode" if checkpoint is None else "PolicyCheckpoint"
            raise EnvError(
                f"{data.env_id} must end an episode within {MAX_EPISODE_STEPS:,} steps with {setting}, got none. Set "
                "max_episode_steps in data.train_kwargs, or collect a number of steps."
            )


class Exploration:
    """Choose random actions at first, then those of the policy plus Gaussian noise."""

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

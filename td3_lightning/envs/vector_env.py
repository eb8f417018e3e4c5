"""Vector of training environments."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from td3_lightning.envs.env_group import EnvGroup, Envs, Step
from td3_lightning.envs.process_env import WorkerPool
from td3_lightning.envs.reports import ReportNames
from td3_lightning.envs.restorable import RestorableEnv
from td3_lightning.envs.spaces import check_are_new, check_same_spaces
from td3_lightning.envs.vector_source import VectorSource
from td3_lightning.errors import EnvError, UsageError
from td3_lightning.seeding import derive_seed
from td3_lightning.serialization.primitives import as_arrays, to_primitives


class TrainingVectorEnv:
    """Step several environments together, and reset each one in the step that ends its episode.

    Args:
        make: Function that makes one environment.
        num_envs: Number of environments.
        workers: Number of processes that step them. 0 steps them in this process.
        timeout: Time limit of one step or one reset of one environment in seconds.
        vector: Source of a vector environment, which is used instead of `make`.
    """

    def __init__(
        self,
        make: Callable[[], gym.Env],
        num_envs: int,
        workers: int = 0,
        timeout: float | None = None,
        vector: VectorSource | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.group: Envs
        if vector is not None:
            self.group = vector.make(num_envs, timeout)
        else:
            self.group = WorkerPool(make, num_envs, workers, timeout) if workers else EnvGroup(make, range(num_envs))
        self.is_stepping = False  # a step has begun, and `finish` has not returned it
        self._finished: Step | None = None  # this step, if a checkpoint contains it
        self._names = ReportNames()

    @property
    def envs(self) -> list[RestorableEnv]:
        """Return the environments of this process. It has none if workers step them."""
        return self.group.envs if isinstance(self.group, EnvGroup) else []

    @property
    def obs(self) -> NDArray[np.float32]:
        """Return the input of the next actions, (num_envs, obs_dim). It is empty before the first reset."""
        return self.group.obs

    def require_match(
        self, eval_env: gym.Env, env_id: str, train_kwargs: Mapping[str, Any], eval_kwargs: Mapping[str, Any]
    ) -> None:
        """Close the environments and raise `UsageError` if their spaces are not those of the evaluation environment."""
        try:
            check_are_new([eval_env, *self.envs], env_id)
            for spaces in self.group.spaces:
                check_same_spaces(spaces, eval_env, env_id, train_kwargs, eval_kwargs)
        except UsageError:
            self.close()
            raise

    def reset(self, steps_before: int = 0, seed: int | None = None) -> None:
        """Start an episode in each environment.

        Each environment has its own seed, which also depends on the number of steps before.

        Args:
            steps_before: Steps of all environments that the replay buffer has stored.
            seed: Seed of the run; by default, that of the last `seed_everything`.
        """
        first = steps_before * self.num_envs
        numbers = range(first, first + self.num_envs)
        self.group.reset([derive_seed("training environment", number, seed) for number in numbers])

    def begin(self, action: NDArray[np.float32]) -> None:
        """Begin a step of each environment. Workers step while this process does something else.

        Args:
            action: Actions (num_envs, action_dim), which must not change until `finish`.

        Raises:
            EnvError: The process of an environment ended.
        """
        self.group.begin(action)
        self.is_stepping = True

    def finish(self) -> Step:
        """Finish the step that has begun. Environments whose episode ended are reset.

        Raises:
            EnvError: An environment or its process failed.
        """
        try:
            return self._finished or self._finish()
        finally:  # a step that failed is not repeated
            self._finished, self.is_stepping = None, False

    def _finish(self) -> Step:
        step = self.group.finish()
        return step._replace(reports=[self._names.limit(report) for report in step.reports]) if step.reports else step

    def step(self, action: NDArray[np.float32]) -> Step:
        """Step each environment: `begin`, then `finish`."""
        self.begin(action)
        return self.finish()

    def episode_steps(self) -> list[int]:
        """Return the number of steps in the running episode of each environment."""
        return self.group.episode_steps()

    def discard_episodes(self) -> None:
        """Discard the running episodes, and the step that has begun. The next call must be `reset` or `close`."""
        self.group.obs = self.obs[:0]
        self._finished, self.is_stepping = None, False

    def state_dict(self) -> dict[str, Any]:
        """Return the running episode of every environment, and the step that has begun.

        This step is finished first. The next `finish` returns it, also after a resume.

        Raises:
            EnvError: The step failed. The running episodes are discarded, so that the run can be saved.
        """
        if not len(self.obs):
            return {"episodes": []}
        try:
            if self.is_stepping and self._finished is None:
                self._finished = self._finish()
            episodes = self.group.states()
        except EnvError:
            self.discard_episodes()
            raise
        state = {"episodes": episodes, **({"step": self._finished.state_dict()} if self._finished else {})}
        return dict(to_primitives(state, "the training environments"))

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Restore the running episodes, and the step that had begun.

        If an episode cannot be restored, this step is discarded, which interrupts every episode.

        Returns:
            The indices of the environments whose episode is interrupted.
        """
        if not state["episodes"]:  # they were discarded
            return []
        if all(episode.keys() == {"actions", "obs"} for episode in state["episodes"]):  # of a vector environment
            return list(range(self.num_envs))  # the next call is `reset`
        same = self.group.restore([as_arrays(episode) for episode in state["episodes"]])
        if "step" not in state:
            return [index for index, is_same in enumerate(same) if not is_same]
        if not all(same):
            return list(range(self.num_envs))
        self._finished, self.is_stepping = Step.from_state(as_arrays(state["step"])), True
        return []

    def close(self) -> None:
        """Close all environments, even if one of them fails."""
        self.group.close()

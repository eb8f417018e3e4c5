"""Vector of training environments."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from td3_lightning.envs.checked import RestorableEnv
from td3_lightning.envs.make import close_env
from td3_lightning.envs.spaces import check_are_new, check_same_spaces
from td3_lightning.envs.workers import Workers
from td3_lightning.errors import EnvError, UsageError
from td3_lightning.seeding import derive_seed
from td3_lightning.serialization.primitives import as_arrays, to_primitives

Results = tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class Step(NamedTuple):
    """Hold one step of all training environments."""

    obs: NDArray[np.float32]  # (num_envs, obs_dim), before the step
    action: NDArray[np.float32]  # (num_envs, action_dim)
    reward: list[float]  # one per environment, as for the next two fields
    terminated: list[bool]
    truncated: list[bool]
    last_obs: NDArray[np.float32]  # (num_envs, obs_dim), before any reset
    reports: list[dict[str, float]]  # one per episode that ended
    resets: NDArray[np.bool_] | None = None  # (num_envs,), environments that were reset instead of stepped, if any

    @property
    def stepped(self) -> Sequence[int]:
        """Return the indices of the environments that took a step."""
        return range(len(self.reward)) if self.resets is None else np.flatnonzero(~self.resets).tolist()


class EnvList(VectorEnv):
    """Step environments in this process in turn, and reset each one in the step that ends its episode.

    Gymnasium's `SyncVectorEnv` does the same, but takes 20 us longer per step.
    """

    def __init__(self, make: Callable[[], gym.Env], num_envs: int) -> None:
        self.num_envs, self.envs = num_envs, list[RestorableEnv]()
        for index in range(num_envs):
            self.envs.append(env := RestorableEnv(make()))
            env.name = f"Environment {index} of {env.name}"
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self._shape = (num_envs, *(self.single_observation_space.shape or ()))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in each environment, with one seed per environment."""
        return np.array([env.reset(seed=own)[0] for env, own in zip(self.envs, seed, strict=True)], np.float32), {}

    def step(self, actions: NDArray[np.float32]) -> Results:
        """Step each environment, and reset those whose episode ends."""
        obs, reward = np.empty(self._shape, np.float32), np.empty(self.num_envs)
        terminated, truncated = np.empty(self.num_envs, bool), np.empty(self.num_envs, bool)
        info: dict[str, Any] = {}
        for place, env in enumerate(self.envs):  # iterating over an array is slower than indexing it
            own_obs, reward[place], ends, stops, own_info = env.step(actions[place])
            terminated[place], truncated[place] = ends, stops
            if ends or stops:
                info.setdefault("last_obs", []).append(own_obs)
                info.setdefault("reports", []).append(own_info)
                own_obs = env.reset()[0]
            obs[place] = own_obs
        return obs, reward, terminated, truncated, info

    def call(self, name: str) -> tuple[Any, ...]:
        """Call a method of each environment."""
        return tuple(getattr(env, name)() for env in self.envs)

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of each environment to its own value."""
        for env, value in zip(self.envs, values, strict=True):
            setattr(env, name, value)

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments."""
        for env in self.envs:
            close_env(env, env.name)


class TrainingVectorEnv:
    """Step the training environments together. A reset is never returned as a transition.

    Args:
        vector: The environments: an `EnvList`, `Workers` or a `CheckedVector`. They check their results. The info of a
            step has "last_obs" and "reports", one for each episode that ended, and "resets", the environments that were
            reset instead of stepped.
    """

    def __init__(self, vector: VectorEnv) -> None:
        self.vector: Any = vector  # the base class does not declare `call` and `set_attr`
        self.num_envs = vector.num_envs
        self.is_stepping = False  # a step has begun, and `finish` has not returned it
        self._finished: Step | None = None  # this step, if a checkpoint contains it
        self.is_restorable = isinstance(vector, EnvList | Workers)
        self.difference = ""  # what the last `load_state_dict` has found
        self.obs = self._action = np.empty((0, 0), np.float32)  # obs (num_envs, obs_dim) is the input of the actions

    @property
    def envs(self) -> list[RestorableEnv]:
        """Return the environments of this process."""
        return self.vector.envs if isinstance(self.vector, EnvList) else []

    def require_match(self, eval_env: gym.Env, env_id: str) -> None:
        """Close the environments and raise `UsageError` if their spaces are not those of the evaluation environment."""
        try:
            check_are_new([eval_env, *self.envs], env_id)
            check_same_spaces(self.vector.single_observation_space, self.vector.single_action_space, eval_env, env_id)
        except UsageError:
            self.close()
            raise

    def reset(self, steps_before: int = 0, seed: int | None = None) -> None:
        """Start an episode in each environment.

        Each environment has its own seed, which also depends on the number of steps before.

        Args:
            steps_before: Steps of all environments before this reset, also in earlier stages.
            seed: Seed of the run; by default, that of the last `seed_everything`.
        """
        first = steps_before * self.num_envs
        numbers = range(first, first + self.num_envs)
        seeds: Any = [derive_seed("training environment", number, seed) for number in numbers]
        obs, _ = self.vector.reset(seed=seeds)
        self.obs = np.asarray(obs, np.float32)

    def begin(self, action: NDArray[np.float32]) -> None:
        """Begin a step of each environment. Workers step while this process does something else.

        Args:
            action: Actions (num_envs, action_dim), which must not change until `finish`.

        Raises:
            EnvError: The process of an environment ended.
        """
        self._action, self.is_stepping = action, True
        if isinstance(self.vector, Workers):
            self.vector.step_async(action)

    def finish(self) -> Step:
        """Finish the step that has begun. Environments whose episode ended are reset.

        Raises:
            EnvError: An environment or its process failed.
        """
        try:
            return self._finished or self._finish()
        finally:  # a step that failed is not repeated
            self._finished, self.is_stepping = None, False

    def step(self, action: NDArray[np.float32]) -> Step:
        """Step each environment: `begin`, then `finish`."""
        self.begin(action)
        return self.finish()

    def _finish(self) -> Step:
        before = self.obs
        is_async = isinstance(self.vector, Workers)
        results: Any = self.vector.step_wait() if is_async else self.vector.step(self._action)
        obs, reward, terminated, truncated, info = results
        last_obs = self.obs = np.asarray(obs, np.float32)
        ends = terminated.tolist(), truncated.tolist()
        if "last_obs" in info:
            last_obs = self.obs.copy()
            last_obs[terminated | truncated] = info["last_obs"]
        reports = list(info.get("reports", ()))
        return Step(before, self._action, reward.tolist(), *ends, last_obs, reports, info.get("resets"))

    def episode_steps(self) -> list[int]:
        """Return the number of steps in the running episode of each environment."""
        return list(self.vector.call("episode_steps"))

    def discard_episodes(self) -> None:
        """Discard the running episodes, and the step that has begun. The next call must be `reset` or `close`."""
        self.obs = self.obs[:0]
        self._finished, self.is_stepping = None, False

    def state_dict(self) -> dict[str, Any]:
        """Return the running episode of every environment, and the step that has begun.

        This step is finished first. The next `finish` returns it, also after a resume. A vector environment that
        cannot restore its episodes saves only the observations.

        Raises:
            EnvError: The step failed. The running episodes are discarded, so that the run can be saved.
        """
        if not len(self.obs):
            return {"episodes": []}
        try:
            if self.is_stepping and self._finished is None:
                self._finished = self._finish()
            no_actions = np.empty((0, *(self.vector.single_action_space.shape or ())), np.float32)
            lost = [{"actions": no_actions, "obs": obs} for obs in self.obs]
            episodes = self.vector.call("state") if self.is_restorable else lost
        except EnvError:
            self.discard_episodes()
            raise
        state: dict[str, Any] = {"episodes": list(episodes)}
        if self._finished is not None:  # only vector environments of other packages have `resets`
            state["step"] = {name: value for name, value in self._finished._asdict().items() if name != "resets"}
        return dict(to_primitives(state, "the training environments"))

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Restore the running episodes, and the step that had begun.

        If an episode cannot be restored, this step is discarded, which interrupts every episode.

        Returns:
            The indices of the environments whose episode is interrupted.
        """
        episodes = [as_arrays(episode) for episode in state["episodes"]]
        if not episodes:  # they were discarded
            return []
        if not self.is_restorable or not any("seed" in episode for episode in episodes):
            self.difference = "a vector environment cannot replay them"
            return list(range(self.num_envs))  # the next call is `reset`
        self.vector.set_attr("saved", episodes)
        differences, obs = zip(*self.vector.call("restore"), strict=True)
        self.obs = np.array(obs, np.float32)
        self.difference = next(filter(None, differences), "")
        if "step" not in state:
            return [index for index, difference in enumerate(differences) if difference]
        if self.difference:
            return list(range(self.num_envs))
        self._finished, self.is_stepping = Step(**as_arrays(state["step"])), True
        return []

    def close(self) -> None:
        """Close all environments, even if one of them fails."""
        close_env(self.vector, "The vector environment")

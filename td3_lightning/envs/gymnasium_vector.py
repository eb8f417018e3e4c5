"""Training environments in a vector environment of Gymnasium."""

import weakref
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from td3_lightning.envs.checked_vector import CheckedVector
from td3_lightning.envs.env_group import Step
from td3_lightning.envs.episode import check_keeps_no_statistics
from td3_lightning.envs.lifetime import close_env
from td3_lightning.envs.reports import scalar_info, split_info
from td3_lightning.errors import UsageError, refuse, shown

SEEDS = 2**31  # EnvPool's seeds are 32-bit integers with a sign


class GymnasiumVector:
    """Step a vector environment in any autoreset mode, without storing a reset as a transition.

    `Step.resets` marks the environments that a step has reset in the mode NEXT_STEP. A running episode cannot be
    restored.

    Args:
        env: The vector environment.
        num_envs: Number of environments that it must have.
        name: Its name in error messages.
        timeout: Time limit of a step or a reset in seconds. None means no limit.

    Raises:
        UsageError: The object is no vector environment, has another size, space or autoreset mode, or keeps statistics.
    """

    def __init__(self, env: gym.vector.VectorEnv, num_envs: int, name: str, timeout: float | None = None) -> None:
        if not isinstance(env, gym.vector.VectorEnv):
            raise refuse(f"the result of {name}", "a gymnasium.vector.VectorEnv", env, "Return one from the function.")
        self._closing = weakref.finalize(self, close_env, env, name, timeout)
        try:
            self._mode = _autoreset_mode(env, name)
            _check(env, num_envs, name)
            check_keeps_no_statistics(env, "data.vector_env")
        except UsageError:
            self.close()
            raise
        self.spaces = [(env.single_observation_space, env.single_action_space)]
        self.obs = self._action = np.empty((0, 0), np.float32)
        self._envs, self._num_envs = CheckedVector(env, name, timeout), num_envs
        self._begin()

    def _begin(self) -> None:
        self._ended = np.zeros(self._num_envs, bool)  # whether the last step ended an episode
        self._returns = np.zeros(self._num_envs)
        self._lengths = np.zeros(self._num_envs, np.int64)

    def reset(self, seeds: Sequence[int]) -> None:
        """Start an episode in each environment. The first seed is that of the vector environment."""
        self.obs = self._envs.reset(seed=seeds[0] % (SEEDS - self._num_envs))
        self._begin()

    def begin(self, action: NDArray[np.float32]) -> None:
        """Set the actions (num_envs, action_dim) of the next step."""
        self._action = action

    def finish(self) -> Step:
        """Step each environment, and reset those whose episode ends.

        In the mode NEXT_STEP, an environment whose episode ended is reset in the next step, which ignores its action.

        Raises:
            EnvError: The vector environment failed, or dropped the final observation of an episode.
        """
        before = self.obs
        obs, reward, terminated, truncated, info = self._envs.step(self._action)
        resets = self._ended if self._mode is AutoresetMode.NEXT_STEP and self._ended.any() else None
        ended = terminated | truncated
        if resets is not None:
            self._envs.require_resets(ended & resets)
            reward[resets] = 0  # a wrapper may have changed it
            self._lengths -= resets
        self._returns += reward
        self._lengths += 1
        last_obs = next_obs = obs
        reports = []
        if ended.any():
            reports = self._reports(info, ended)
            last_obs, next_obs = self._reset_ended(obs, info, ended)
        self.obs, self._ended = next_obs, ended
        ends = terminated.tolist(), truncated.tolist()
        return Step(before, self._action, reward.tolist(), *ends, last_obs, reports, resets)

    def _reset_ended(
        self, obs: NDArray[np.float32], info: dict[str, Any], ended: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the observations before and after the reset of the episodes that ended. NEXT_STEP resets later."""
        other = obs.copy()
        if self._mode is AutoresetMode.SAME_STEP:
            other[ended] = self._envs.final_obs(info, np.flatnonzero(ended).tolist())
            return other, obs
        if self._mode is AutoresetMode.DISABLED:
            other[ended] = self._envs.reset(options={"reset_mask": ended.copy()})[ended]
        return obs, other

    def _reports(self, info: dict[str, Any], ended: NDArray[np.bool_]) -> list[dict[str, float]]:
        """Return one report per episode that ended, and clear their returns and lengths."""
        envs = np.flatnonzero(ended).tolist()
        final_info = info.get("final_info") if self._mode is AutoresetMode.SAME_STEP else info
        reports = [
            scalar_info(own) | {"return": float(self._returns[env]), "length": float(self._lengths[env])}
            for env, own in zip(envs, split_info(final_info, envs, self._num_envs), strict=True)
        ]
        self._returns[ended], self._lengths[ended] = 0, 0
        return reports

    def episode_steps(self) -> list[int]:
        """Return the number of steps in the running episode of each environment."""
        return list(map(int, self._lengths))

    def states(self) -> list[dict[str, Any]]:
        """Return states that no environment can restore: the observations without the actions."""
        actions = np.empty((0, *(self.spaces[0][1].shape or ())), np.float32)
        return [{"actions": actions, "obs": obs} for obs in self.obs]

    def generators(self) -> list[str]:
        """Return nothing, because no state of a generator is restored."""
        return []

    def restore(self, states: Sequence[dict[str, Any]]) -> list[bool]:
        """Restore nothing, and return False for every episode. The next call must be `reset`."""
        return [False] * self._num_envs

    def close(self) -> None:
        """Close the vector environment once, also at the exit of the interpreter."""
        self._closing()


def _autoreset_mode(env: gym.vector.VectorEnv, name: str) -> AutoresetMode:
    mode = (env.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        fix = "Set it to the mode that the documentation of the environment names."
        raise refuse(f'metadata["autoreset_mode"] of {name}', "a gymnasium.vector.AutoresetMode", mode, fix) from None


def _check(env: gym.vector.VectorEnv, num_envs: int, name: str) -> None:
    """Raise `UsageError` if a vector environment has another size, or does not observe a box with one axis."""
    if env.num_envs != num_envs:
        raise refuse(f"data.num_envs of {name}", f"{env.num_envs}", num_envs, f"Use {env.num_envs}.")
    space = env.single_observation_space
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise UsageError(
            f"observations of {name} must be a Box with one axis, got {shown(space)}. Return "
            "gymnasium.wrappers.vector.FlattenObservation(env) from the function of data.vector_env."
        )
    if not isinstance(env.single_action_space, Box):
        raise refuse(
            f"actions of {name}", "a Box", env.single_action_space, "Use an environment with continuous actions."
        )

"""Wrapper that checks a vector environment of another package once per step.

The environment must reset in the step after the end of an episode (NEXT_STEP), as EnvPool and Gymnasium do by default.
"""

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from td3_lightning.envs.checked import MAX_FLOAT32, advice
from td3_lightning.envs.episode import check_keeps_no_statistics
from td3_lightning.envs.reports import scalar_info, split_info
from td3_lightning.errors import EnvError, UsageError, described, is_ours, refuse, shown

SEEDS = 2**31  # EnvPool's seeds are 32-bit integers with a sign
NEXT_STEP = AutoresetMode.NEXT_STEP
Bools = NDArray[np.bool_]


class CheckedVector(VectorWrapper):
    """Check results once per step, and copy them.

    Args:
        env: The vector environment.
        num_envs: Number of environments that it must have.
        name: Its name in error messages.

    Raises:
        UsageError: The object is no vector environment, or has another size, space or autoreset mode.
        EnvError: A result is invalid, or the environment raised an exception.
    """

    def __init__(self, env: VectorEnv, num_envs: int, name: str) -> None:
        _check(env, num_envs, name)
        super().__init__(env)
        self.name, self.seed, self.steps = name, 0, 0  # seed of the last reset, and steps since then
        self._shape = (num_envs, *(env.single_observation_space.shape or ()))
        self._begin_episodes()

    def _begin_episodes(self) -> None:
        self._ended = np.zeros(self.num_envs, bool)  # whether the last step ended an episode
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environments. The first seed is that of the vector environment."""
        self.seed, self.steps = seed[0] % (SEEDS - self.num_envs), 0
        self._begin_episodes()
        try:
            obs, info = self.env.reset(seed=self.seed, options=options)
        except Exception as error:
            raise self._failure(error) from error
        return self._checked("observations", obs, *self._shape), info

    def step(self, actions: NDArray[np.float32]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments with actions (num_envs, action_dim). The info is that of `TrainingVectorEnv`.

        An environment whose episode ended is reset in the next step, which ignores its action.
        """
        self.steps += 1
        own_actions: Any = actions.astype(self.env.single_action_space.dtype)
        try:
            obs, reward, *ends, info = self.env.step(own_actions)
        except Exception as error:
            raise self._failure(error) from error
        rewards = self._checked("rewards", reward, self.num_envs).astype(np.float64)
        terminated, truncated = (self._checked("ends", each, self.num_envs).astype(bool) for each in ends)
        values = self._checked("observations", obs, *self._shape).astype(np.float32)
        return values, rewards, terminated, truncated, self._ends(values, rewards, terminated | truncated, info)

    def _ends(
        self, obs: NDArray[np.float32], reward: NDArray[np.float64], ended: Bools, info: dict[str, Any]
    ) -> dict[str, Any]:
        """Count the step, and return the info."""
        found: dict[str, Any] = {}
        if self._ended.any():
            if (ended & self._ended).any():
                what = "ended an episode in two consecutive steps, but the mode NEXT_STEP resets it in the second one,"
                raise self._fault(what, 'Correct metadata["autoreset_mode"].')
            found["resets"] = self._ended
            reward[self._ended] = 0  # a wrapper may have changed it
            self._lengths -= self._ended
        self._returns += reward
        self._lengths += 1
        self._ended = ended
        if not ended.any():
            return found
        return found | {"last_obs": obs[ended], "reports": self._reports(ended, info)}

    def _reports(self, ended: Bools, info: dict[str, Any]) -> list[dict[str, float]]:
        """Return one report per episode that ended, and clear their returns and lengths."""
        envs = np.flatnonzero(ended).tolist()
        own_infos = split_info(info, envs, self.num_envs)
        totals = [{"return": self._returns[env], "length": float(self._lengths[env])} for env in envs]
        self._returns[ended], self._lengths[ended] = 0, 0
        return [scalar_info(own) | total for own, total in zip(own_infos, totals, strict=True)]

    def call(self, name: str) -> tuple[Any, ...]:
        """Return the lengths of the running episodes, the only call that is supported."""
        assert name == "episode_steps"
        return tuple(self._lengths.tolist())

    def _checked(self, what: str, values: Any, *shape: int) -> NDArray[Any]:
        """Return a copy of finite numbers of a shape, one row per environment."""
        try:
            array = np.array(values)
        except Exception as error:  # a ragged list, or tensors on a GPU
            raise self._failure(error) from error
        if array.shape != shape or array.dtype.kind not in "biuf":
            raise self._fault(f"returned {what} of shape {array.shape} and type {array.dtype}, expected {shape},")
        if not np.abs(array).max() <= MAX_FLOAT32:
            env, *index = np.argwhere(~(np.abs(array) <= MAX_FLOAT32))[0].tolist()
            where = f"at index {index[0]} in environment {env}" if index else f"in environment {env}"
            raise self._fault(f"returned {what} that are not finite, {array[(env, *index)]} {where},")
        return array

    def _failure(self, error: Exception) -> Exception:
        """Return the error to raise for an exception of the environment."""
        return error if is_ours(error) else self._fault(f"raised {described(error)}", advice(error))

    def _fault(self, what: str, fix: str = "Correct the environment, or wrap it.") -> EnvError:
        where = f"at step {self.steps} with seed {self.seed}"
        return EnvError(f"{self.name} {what} {where}. This step is not stored. {fix}")


def _check(env: Any, num_envs: int, name: str) -> None:
    """Raise `UsageError` if an object is no vector environment, or has another size, space or autoreset mode."""
    if not isinstance(env, VectorEnv):
        raise refuse(f"the result of {name}", "a gymnasium.vector.VectorEnv", env, "Return one from the function.")
    if env.num_envs != num_envs:
        raise refuse(f"data.num_envs of {name}", f"{env.num_envs}", num_envs, f"Use {env.num_envs}.")
    check_keeps_no_statistics(env, "data.vector_env")
    mode = (env.metadata or {}).get("autoreset_mode")
    if mode not in (NEXT_STEP, NEXT_STEP.value):
        fix = "Make it with autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP, or set the mode if it has none."
        raise refuse(f'metadata["autoreset_mode"] of {name}', str(NEXT_STEP), mode, fix)
    space = env.single_observation_space
    if not isinstance(space, Box) or len(space.shape) != 1 or not isinstance(env.single_action_space, Box):
        raise UsageError(
            f"{name} must have actions in a Box, and observations in a Box with one axis, got {shown(space)}. Return "
            "gymnasium.wrappers.vector.FlattenObservation(env) from the function of data.vector_env."
        )

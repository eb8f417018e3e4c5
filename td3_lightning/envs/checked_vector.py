"""Wrapper that checks a vector environment of another package once per step, in any autoreset mode."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from td3_lightning.envs.checked import MAX_FLOAT32, advice
from td3_lightning.envs.episode import check_keeps_no_statistics
from td3_lightning.envs.reports import scalar_info, split_info
from td3_lightning.errors import EnvError, UsageError, described, is_ours, refuse, shown

SEEDS = 2**31  # EnvPool's seeds are 32-bit integers with a sign
FINAL_OBS = ("final_obs", "final_observation")  # names in Gymnasium 1.x, and in earlier versions and ManiSkill
Bools = NDArray[np.bool_]


class CheckedVector(VectorWrapper):
    """Check results once per step, and copy them to NumPy arrays, also from a GPU.

    An environment that observes PyTorch tensors gets its actions as tensors on the same device.

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
        self.name, self.seed, self.steps = name, 0, 0  # seed of the last reset with a seed, and steps since then
        self._mode = AutoresetMode(env.metadata["autoreset_mode"])
        self._device: torch.device | None = None  # of the environment's tensors
        self._begin_episodes()

    def _begin_episodes(self) -> None:
        self._ended = np.zeros(self.num_envs, bool)  # whether the last step ended an episode
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environments. The first seed is that of the vector environment."""
        own_seed = None if seed is None else seed[0] % (SEEDS - self.num_envs)
        if own_seed is not None:
            self.seed, self.steps = own_seed, 0
            self._begin_episodes()
        try:
            obs, info = self.env.reset(seed=own_seed, options=options)
        except Exception as error:
            raise self._failure(error) from error
        self._device = obs.device if isinstance(obs, torch.Tensor) else None
        return self._checked_obs(obs, self.num_envs), info

    def step(self, actions: NDArray[np.float32]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments with actions (num_envs, action_dim). The info is that of `TrainingVectorEnv`.

        In the mode NEXT_STEP, an environment whose episode ended is reset in the next step, which ignores its action.
        """
        self.steps += 1
        own_actions: Any = actions.astype(self.env.single_action_space.dtype)
        if self._device is not None:
            own_actions = torch.from_numpy(own_actions).to(self._device)
        try:
            obs, *others, info = self.env.step(own_actions)
            reward, terminated, truncated = (np.array(_on_cpu(each)) for each in others)
        except Exception as error:
            raise self._failure(error) from error
        if not all(each.shape == (self.num_envs,) for each in (reward, terminated, truncated)):
            raise self._fault(f"returned rewards or ends of another shape than ({self.num_envs},)")
        if not np.abs(reward).max() <= MAX_FLOAT32:
            env = int(np.argmin(np.abs(reward) <= MAX_FLOAT32))
            raise self._fault(f"returned a reward that is not finite, {reward[env]}, in environment {env}")
        values, reward = self._checked_obs(obs, self.num_envs), reward.astype(np.float64)
        terminated, truncated = terminated.astype(bool), truncated.astype(bool)
        return values, reward, terminated, truncated, self._ends(values, reward, terminated | truncated, info)

    def _ends(
        self, obs: NDArray[np.float32], reward: NDArray[np.float64], ended: Bools, info: dict[str, Any]
    ) -> dict[str, Any]:
        """Count the step, reset episodes that ended if the environment does not, and return the info."""
        found: dict[str, Any] = {}
        if self._mode is AutoresetMode.NEXT_STEP and self._ended.any():
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
        return found | {"last_obs": self._last_obs(obs, ended, info), "reports": self._reports(ended, info)}

    def _reports(self, ended: Bools, info: dict[str, Any]) -> list[dict[str, float]]:
        """Return one report per episode that ended, and clear their returns and lengths."""
        envs, is_same = np.flatnonzero(ended).tolist(), self._mode is AutoresetMode.SAME_STEP
        own_infos = split_info(info.get("final_info") if is_same else info, envs, self.num_envs)
        totals = zip(self._returns[ended].tolist(), self._lengths[ended].tolist(), strict=True)
        self._returns[ended], self._lengths[ended] = 0, 0
        return [
            scalar_info(own) | {"return": total, "length": float(length)}
            for own, (total, length) in zip(own_infos, totals, strict=True)
        ]

    def _last_obs(self, obs: NDArray[np.float32], ended: Bools, info: dict[str, Any]) -> NDArray[np.float32]:
        """Return the observations before the reset of the episodes that ended. `obs` gets those after it.

        Raises:
            EnvError: The simulator drops them. A truncated episode would bootstrap from the start of the next one.
        """
        last_obs = obs[ended]
        if self._mode is AutoresetMode.DISABLED:
            obs[ended] = self.reset(options={"reset_mask": ended.copy()})[0][ended]
        if self._mode is not AutoresetMode.SAME_STEP:
            return last_obs
        found = next((_on_cpu(info[name]) for name in FINAL_OBS if name in info), None)
        if found is None or any(found[env] is None for env in np.flatnonzero(ended)):
            fix = "Return it, or use the autoreset mode NEXT_STEP or DISABLED."
            raise self._fault('ended an episode without its final observation in info["final_obs"]', fix)
        return self._checked_obs([_on_cpu(found[env]) for env in np.flatnonzero(ended)], len(last_obs))

    def call(self, name: str) -> tuple[Any, ...]:
        """Return the lengths of the running episodes, the only call that is supported."""
        assert name == "episode_steps"
        return tuple(self._lengths.tolist())

    def _checked_obs(self, obs: Any, rows: int) -> NDArray[np.float32]:
        """Return a copy of observations, one row per environment."""
        try:
            values = np.array(_on_cpu(obs))
        except Exception as error:  # a ragged list
            raise self._failure(error) from error
        expected = (rows, *(self.env.single_observation_space.shape or ()))
        if values.shape != expected or values.dtype.kind not in "biuf":
            raise self._fault(f"returned observations of shape {values.shape}, expected {expected},")
        if not np.abs(values).max() <= MAX_FLOAT32:
            row, index = np.argwhere(~(np.abs(values) <= MAX_FLOAT32))[0]
            what = f"an observation that is not finite, {values[row, index]} at index {index},"
            raise self._fault(f"returned {what} in environment {row}")
        return values.astype(np.float32)

    def _failure(self, error: Exception) -> Exception:
        """Return the error to raise for an exception of the environment."""
        return error if is_ours(error) else self._fault(f"raised {described(error)}", advice(error))

    def _fault(self, what: str, fix: str = "Correct the environment, or wrap it.") -> EnvError:
        return EnvError(
            f"{self.name} {what} at step {self.steps} with seed {self.seed}. This step is not stored. {fix}"
        )


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def _check(env: Any, num_envs: int, name: str) -> None:
    """Raise `UsageError` if an object is no vector environment, or has another size, space or autoreset mode."""
    if not isinstance(env, VectorEnv):
        raise refuse(f"the result of {name}", "a gymnasium.vector.VectorEnv", env, "Return one from the function.")
    if env.num_envs != num_envs:
        raise refuse(f"data.num_envs of {name}", f"{env.num_envs}", num_envs, f"Use {env.num_envs}.")
    check_keeps_no_statistics(env, "data.vector_env")
    mode = (env.metadata or {}).get("autoreset_mode")
    if mode not in [*AutoresetMode, *(each.value for each in AutoresetMode)]:
        fix = "Set it to the mode that the documentation of the environment names."
        raise refuse(f'metadata["autoreset_mode"] of {name}', "a gymnasium.vector.AutoresetMode", mode, fix)
    space = env.single_observation_space
    if not isinstance(space, Box) or len(space.shape) != 1 or not isinstance(env.single_action_space, Box):
        raise UsageError(
            f"{name} must have actions in a Box, and observations in a Box with one axis, got {shown(space)}. Return "
            "gymnasium.wrappers.vector.FlattenObservation(env) from the function of data.vector_env."
        )

"""Checks of the results of a vector environment."""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from td3_lightning.envs.checked import DEFAULT_ADVICE, MAX_FLOAT32, checked_call
from td3_lightning.envs.lifetime import Alarm
from td3_lightning.errors import EnvError, described, shown

FINAL_OBS = ("final_obs", "final_observation")  # names in Gymnasium 1.x, and in earlier versions and ManiSkill


class Outcome(NamedTuple):
    """Hold the checked results of one step of a vector environment."""

    obs: NDArray[np.float32]  # (num_envs, obs_dim)
    reward: NDArray[np.float64]  # (num_envs,), as for the next two fields
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    info: dict[str, Any]


class CheckedVector:
    """Check the results of a vector environment once per step, and copy them to NumPy arrays, also from a GPU.

    An environment that observes PyTorch tensors gets its actions as tensors on the same device.

    Args:
        env: The vector environment. It observes a box with one axis.
        name: Its name in error messages.
        timeout: Time limit of a step or a reset in seconds. None means no limit.

    Raises:
        EnvError: A result is invalid, or the environment raised an exception.
    """

    def __init__(self, env: gym.vector.VectorEnv, name: str, timeout: float | None) -> None:
        self.env, self.name = env, name
        self.seed: int | None = None  # seed of the last reset with a seed
        self.steps = 0  # steps since that reset
        self._alarm = Alarm(timeout)
        self._device: torch.device | None = None  # of the environment's tensors

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> NDArray[np.float32]:
        """Reset the environments, and return their observations (num_envs, obs_dim)."""
        if seed is not None:
            self.seed, self.steps = seed, 0
        obs, _ = checked_call(self._fault, 2, self._timed, self.env.reset, seed=seed, options=options)
        self._device = obs.device if isinstance(obs, torch.Tensor) else None
        return self._checked_obs(obs, range(self.env.num_envs))

    def step(self, action: NDArray[np.float32]) -> Outcome:
        """Step the environments with actions (num_envs, action_dim) in the type of the action space."""
        self.steps += 1
        own_action: Any = action.astype(self.env.single_action_space.dtype)
        if self._device is not None:
            own_action = torch.from_numpy(own_action).to(self._device)
        obs, reward, terminated, truncated, info = checked_call(self._fault, 5, self._timed, self.env.step, own_action)
        if not isinstance(info, dict):
            self._fail(f"returned {shown(info)} as info, expected a dict,")
        return Outcome(
            self._checked_obs(obs, range(self.env.num_envs)),
            self._checked_reward(reward),
            self._column("terminated", terminated, "b").astype(bool),
            self._column("truncated", truncated, "b").astype(bool),
            info,
        )

    def final_obs(self, info: dict[str, Any], envs: list[int]) -> NDArray[np.float32]:
        """Return the last observations (n, obs_dim) of the episodes of `envs`, which ended and were reset.

        Raises:
            EnvError: The simulator drops them. A truncated episode would bootstrap from the start of the next one.
        """
        name = next((name for name in FINAL_OBS if name in info), None)
        found = self._array("final observations", info[name]) if name is not None else np.empty(0)
        given = self._array("a mask", info.get(f"_{name}", np.full(found.shape[:1], True)))
        if len(given) != self.env.num_envs or not all(given[env] and found[env] is not None for env in envs):
            self._fail(
                f'ended the episode of environment {envs[0]} without its final observation in info["final_obs"]',
                "Return it, or use the autoreset mode NEXT_STEP or DISABLED.",
            )
        return self._checked_obs(list(found[envs]), envs)

    def require_resets(self, ended: NDArray[np.bool_]) -> None:
        """Raise `EnvError` if an episode ended in a step that resets its environment."""
        if ended.any():
            self._fail(
                f"ended the episode of environment {int(np.argmax(ended))} in two consecutive steps, but the mode "
                "NEXT_STEP resets it in the second one",
                'Correct metadata["autoreset_mode"].',
            )

    def _timed(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._alarm:
            return call(*args, **kwargs)

    def _checked_obs(self, obs: Any, envs: "range | list[int]") -> NDArray[np.float32]:
        """Return a copy of the observations of some environments, one row per environment."""
        values = self._array("observations", obs)
        expected = (len(envs), *(self.env.single_observation_space.shape or ()))
        if values.shape != expected or values.dtype.kind not in "biuf":
            self._fail(f"returned observations of shape {values.shape} and type {values.dtype}, expected {expected},")
        if values.dtype.kind == "f" and not np.abs(values).max() <= MAX_FLOAT32:
            row, index = np.argwhere(~(np.abs(values) <= MAX_FLOAT32))[0]
            what = f"an observation that is not finite, {values[row, index]} at index {index},"
            self._fail(f"returned {what} in environment {envs[row]}")
        return np.array(values, np.float32)

    def _checked_reward(self, reward: Any) -> NDArray[np.float64]:
        values = self._column("reward", reward, "biuf")
        if not np.abs(values).max() <= MAX_FLOAT32:
            env = int(np.argmin(np.abs(values) <= MAX_FLOAT32))
            self._fail(f"returned a reward that is not finite, {values[env]}, in environment {env}")
        return values.astype(np.float64)

    def _column(self, name: str, value: Any, kinds: str) -> NDArray[Any]:
        """Return one value per environment."""
        values = self._array(name, value)
        expected = (self.env.num_envs,)
        if values.shape != expected or values.dtype.kind not in kinds:
            kind = "booleans" if kinds == "b" else "numbers"
            got = f"shape {values.shape} and type {values.dtype}"
            self._fail(f"returned {name} of {got}, expected {kind} of shape {expected},")
        return values

    def _array(self, name: str, value: Any) -> NDArray[Any]:
        try:
            return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
        except Exception as error:  # a ragged list, or an __array__ method that raises
            kind = type(value).__name__
            said = f"{name} of type {kind} that NumPy cannot convert, {described(error)},"
            raise self._fault(f"returned {said}") from error

    def _fail(self, what: str, fix: str = DEFAULT_ADVICE) -> NoReturn:
        raise self._fault(what, fix)

    def _fault(self, what: str, fix: str = DEFAULT_ADVICE) -> EnvError:
        where = f"step {self.steps} after the reset" if self.steps else "the reset"
        return EnvError(f"{self.name} {what} at {where} with seed {self.seed}. This step is not stored. {fix}")

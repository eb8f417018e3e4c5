"""Wrapper that checks every observation, reward and info of an environment."""

import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from td3_lightning.envs.lifetime import Lifetime, StepTimeoutError, must_pass, name_of
from td3_lightning.errors import EnvError, as_float, described, shown

# float64, because comparison with float16 would round a Python float.
MAX_FLOAT32 = np.float64(np.finfo(np.float32).max)
MAX_REWARD = float(MAX_FLOAT32)  # comparison of Python floats is faster
SAFE_SQUARES = 1e70  # a sum of squares below this holds no number above MAX_FLOAT32
DEFAULT_ADVICE = "Correct the environment, or wrap it."
TIMEOUT_ADVICE = "Increase data.step_timeout, or correct the environment."

# Words in MuJoCo's errors.
OPENGL = ("opengl", "gladload", "framebuffer", "glfw", "osmesa", "mjr_", "eglerror", "eglquery")


class CheckedEnv(gym.Wrapper):
    """Check that the results of an environment match its spaces and Gymnasium's interface.

    The checks use the spaces at construction.

    Args:
        env: The environment.

    Raises:
        EnvError: A result is invalid, or the environment raised an exception. The message names the environment, the
            step, the episode and the last seed.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self._shape = getattr(env.observation_space, "shape", None)
        self.name = name_of(env)  # first words of an error message
        self.first_seed: int | None = None  # seed of the last reset with a seed
        self.seed: int | None = None  # seed of the running episode
        self.episodes = 0  # episodes since the first seed
        self.steps = 0  # steps in the running episode
        self._last_action_space: object = None  # at the last reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and check that its action space is unchanged."""
        if seed is not None:
            self.first_seed, self.episodes = seed, 0
        self.seed = seed if seed is not None else self._next_seed()
        self.episodes, self.steps = self.episodes + 1, 0
        obs, info = checked_call(self._fault, 2, self.env.reset, seed=self.seed, options=options)
        self._check_info(info)
        self._check_actions()
        return self._checked_obs(obs), info

    def _next_seed(self) -> int | None:
        """Return the seed of an episode that begins without one."""
        return None

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment. Return the reward as a float, and the end of the episode as two booleans."""
        self.steps += 1
        try:  # checked_call without its cost, which matters in every step
            result = self.env.step(action)
        except BaseException as error:  # an environment may call sys.exit
            raise_fault(self._fault, error)
        if type(result) is not tuple or len(result) != 5:
            check_tuple(self._fault, result, 5)
        obs, reward, terminated, truncated, info = result
        values = self._checked_obs(obs)
        number = self._checked_reward(reward)
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = self._checked_ends(terminated=terminated, truncated=truncated)
        if type(info) is not dict:
            self._check_info(info)
        return values, number, terminated, truncated, info

    def _check_info(self, info: Any) -> None:
        if not isinstance(info, dict):
            raise self._fault(f"returned {shown(info)} as info, expected a dict,")

    def _checked_obs(self, obs: Any) -> NDArray[Any]:
        try:
            values = np.asarray(obs)
        except Exception as error:  # a ragged list, a GPU tensor, or an __array__ method that raises
            said = f"an observation of type {type(obs).__name__} that NumPy cannot convert, {described(error)},"
            raise self._fault(f"returned {said}") from error
        kind = values.dtype.kind
        if values.shape != self._shape or kind not in "biuf":
            got, expected = f"shape {values.shape} and type {values.dtype}", self.observation_space
            promised = f"shape {expected.shape} and type {expected.dtype}"
            raise self._fault(f"returned an observation of {got}, expected {promised} from its observation_space,")
        if kind == "f" and not _is_small(values) and not np.abs(values).max() <= MAX_FLOAT32:
            first = int(np.argmin(np.abs(values.ravel()) <= MAX_FLOAT32))
            raise self._fault(f"returned an observation that is not finite, {values.flat[first]} at index {first},")
        # PyTorch has neither other byte orders, as in data from a network, nor long doubles.
        return values if values.dtype.isnative and values.dtype.char != "g" else values.astype(np.float64)

    def _checked_reward(self, value: Any) -> float:
        if type(value) is np.float64:
            value = float(value)
        elif type(value) is not float:
            number = float(value) if isinstance(value, bool | np.bool_) else as_float(value)
            if number is None:
                raise self._fault(f"returned a reward of {shown(value)}, expected one number,")
            value = number
        if not -MAX_REWARD <= value <= MAX_REWARD:
            raise self._fault(f"returned a reward that is not finite, {value},")
        return float(value)

    def _checked_ends(self, **ends: Any) -> Iterator[bool]:
        for name, end in ends.items():
            if not isinstance(end, bool | np.bool_):
                raise self._fault(f"returned {shown(end)} as {name}, expected true or false,")
        return map(bool, ends.values())

    def _check_actions(self) -> None:
        """Check that the action space is the one at construction."""
        inner = self.env.env if isinstance(self.env, Lifetime) else self.env  # Lifetime hides changes of the space
        space = inner.action_space
        if space is not self._last_action_space and space != self.action_space:
            raise self._fault(f"changed its action_space from {shown(self.action_space)} to {shown(space)}")
        self._last_action_space = space

    def _fault(self, what: str, fix: str = DEFAULT_ADVICE) -> EnvError:
        where = f"step {self.steps} of" if self.steps else "the reset of"
        episode = f"episode {self.episodes} after seed {self.first_seed}"
        if self.seed is not None:
            episode = f"the episode with seed {self.seed}"
        return EnvError(f"{self.name} {what} at {where} {episode}. This step is not stored. {fix}")


def checked_call(
    fault: Callable[..., EnvError], length: int, call: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """Call a method of an environment, and check that it returns a tuple.

    Args:
        fault: Makes the error from what happened and the advice.
        length: Length of the tuple.
        call: The method, which is called with the remaining arguments.

    Raises:
        EnvError: The environment raised an exception, exceeded the time limit, or returned another value.
    """
    try:
        result = call(*args, **kwargs)
    except BaseException as error:  # an environment may call sys.exit
        raise_fault(fault, error)
    check_tuple(fault, result, length)
    return result  # type: ignore[no-any-return]


def raise_fault(fault: Callable[..., EnvError], error: BaseException) -> NoReturn:
    """Raise an exception of an environment as `EnvError`, unless it ends the process."""
    if must_pass(error):
        raise error
    if isinstance(error, StepTimeoutError):
        raise fault(f"did not return within {error.seconds:g} seconds", TIMEOUT_ADVICE) from error
    raise fault(f"raised {described(error)}", advice(error)) from error


def check_tuple(fault: Callable[..., EnvError], result: Any, length: int) -> None:
    """Raise `EnvError` unless an environment returned a tuple of this length."""
    if not isinstance(result, tuple) or len(result) != length:
        raise fault(f"returned {shown(result)}, expected a tuple of {length},")


def _is_small(values: NDArray[Any]) -> bool:
    """Return whether all numbers are finite and far below the bound. This is faster than the exact check."""
    flat = values.ravel()  # its method `dot` is faster than np.vdot
    return values.itemsize > 2 and float(flat.dot(flat)) < SAFE_SQUARES


def advice(error: BaseException, otherwise: str = DEFAULT_ADVICE) -> str:
    """Return advice for an exception of an environment, for example if MuJoCo cannot find a display.

    Args:
        error: The exception.
        otherwise: Advice for exceptions of other kinds.
    """
    text = described(error).lower()
    if any(word in text for word in OPENGL):
        found = os.environ.get("MUJOCO_GL")
        use = "MUJOCO_GL=osmesa" if found == "egl" else "MUJOCO_GL=egl"
        return f"To render without a display, set the environment variable {use}."
    return otherwise

"""Wrapper that checks every observation, reward and info of an environment."""

import os
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from td3_lightning.envs.lifetime import Lifetime, StepTimeoutError, must_pass, name_of
from td3_lightning.errors import EnvError, as_float, described, shown

LARGEST = np.float64(np.finfo(np.float32).max)  # what a replay can hold; a plain float would be float16 beside that


OTHERWISE = "Correct the environment, or wrap it."


OPENGL = ("opengl", "gladload", "framebuffer", "glfw", "osmesa", "mjr_", "eglerror", "eglquery")  # in errors of MuJoCo


class CheckedEnv(gym.Wrapper):
    """Return what an environment returns, if it is of the kind that its spaces and Gymnasium promise.

    Otherwise, or if the environment raises, raise an `EnvError` that names the environment, the step, the episode and
    the seed that the episodes come from. The
    spaces are those at construction.

    Args:
        env: The environment.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.name = name_of(env)  # the first words of an error
        self.first_seed: int | None = None  # that of the last reset that had one
        self.episodes = 0  # begun since that reset
        self.steps = 0  # in the running episode
        self._actor_input: object = None  # the action space at the last reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and check that the actions are still the same."""
        if seed is not None:
            self.first_seed, self.episodes = seed, 0
        self.episodes, self.steps = self.episodes + 1, 0
        obs, info = self._ask(lambda: self.env.reset(seed=seed, options=options), 2)
        self._check_info(info)
        self._check_actions()
        return self._checked_obs(obs), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step; return the reward as a float and the two ends as truth values."""
        self.steps += 1
        obs, reward, terminated, truncated, info = self._ask(lambda: self.env.step(action), 5)
        values = self._checked_obs(obs)
        number = self._checked_number("reward", reward)
        for name, end in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(end, bool | np.bool_):
                raise self._fault(f"returned {shown(end)} as {name}, expected true or false,")
        self._check_info(info)
        return values, number, bool(terminated), bool(truncated), info

    def _ask(self, call: Callable[[], Any], length: int) -> Any:
        try:
            answer = call()
        except StepTimeoutError as late:
            raise self._fault(f"did not answer within {late.seconds:g} seconds") from late
        except BaseException as error:  # an environment may call sys.exit
            if must_pass(error):
                raise
            raise self._fault(f"raised {described(error)}", advice(error)) from error
        if not isinstance(answer, tuple) or len(answer) != length:
            raise self._fault(f"returned {shown(answer)}, expected a tuple of {length},")
        return answer

    def _checked_obs(self, obs: Any) -> NDArray[Any]:
        wanted = self.observation_space
        try:
            values = np.asarray(obs)
        except Exception as error:  # a ragged list, a tensor on a GPU, any object with an __array__ that raises
            said = f"an observation of type {type(obs).__name__} that NumPy cannot convert, {described(error)},"
            raise self._fault(f"returned {said}") from error
        if values.shape != wanted.shape or values.dtype.kind not in "biuf":
            got = f"shape {values.shape} and type {values.dtype}"
            wants = f"shape {wanted.shape} and type {wanted.dtype}"
            raise self._fault(f"returned an observation of {got}, expected {wants} from its observation_space,")
        if values.dtype.kind == "f" and not np.abs(values).max() <= LARGEST:
            first = int(np.argmin(np.abs(values.ravel()) <= LARGEST))
            raise self._fault(f"returned an observation that is not finite, {values.flat[first]} at index {first},")
        return values

    def _checked_number(self, name: str, value: Any) -> float:
        if type(value) is not float:
            number = float(value) if isinstance(value, bool | np.bool_) else as_float(value)
            if number is None:
                raise self._fault(f"returned a {name} of {shown(value)}, expected one number,")
            value = number
        if not abs(value) <= LARGEST:
            raise self._fault(f"returned a {name} that is not finite, {value},")
        return float(value)

    def _check_info(self, info: Any) -> None:
        if not isinstance(info, dict):
            raise self._fault(f"returned {shown(info)} as info, expected a dict,")

    def _check_actions(self) -> None:
        """Check that the actions are still those that the run began with."""
        inner = self.env.env if isinstance(self.env, Lifetime) else self.env  # whose space may change
        space = inner.action_space
        if space is not self._actor_input and space != self.action_space:
            raise self._fault(f"changed its action_space from {shown(self.action_space)} to {shown(space)}")
        self._actor_input = space

    def _fault(self, what: str, fix: str = OTHERWISE) -> EnvError:
        where = f"step {self.steps} of" if self.steps else "the reset of"
        return EnvError(
            f"{self.name} {what} at {where} episode {self.episodes} after seed {self.first_seed}. This step is not "
            f"stored. {fix}"
        )


def advice(error: BaseException, otherwise: str = OTHERWISE) -> str:
    """Advise on an exception of an environment: MuJoCo without a display needs another OpenGL, for example."""
    text = described(error).lower()
    if any(word in text for word in OPENGL):
        found = os.environ.get("MUJOCO_GL")
        use = "MUJOCO_GL=osmesa" if found == "egl" else "MUJOCO_GL=egl"
        return f"To render without a display, set the environment variable {use}."
    return otherwise

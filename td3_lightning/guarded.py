"""Environments that may fail: what they answer is checked, and how long they take."""

import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from td3_lightning.errors import EnvError, RunError, UsageError, check_at_least, one_line

LARGEST = np.float64(np.finfo(np.float32).max)  # what a replay can hold; a plain float would be float16 beside that


class OverdueError(TimeoutError):
    """An environment did not answer within `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} seconds")
        self.seconds = seconds


class Guarded(gym.Wrapper):
    """Passes on what an environment answers, if it is of the kind that its spaces and Gymnasium promise.

    Otherwise, or if it raises, there is an `EnvError` that names the environment, the step, the episode, and the
    seed that the episodes come from.

    Args:
        env: The environment.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.name = env.spec.id if env.spec else type(env.unwrapped).__name__  # what the sentence begins with
        self.first_seed: int | None = None  # that of the last reset that had one
        self.episodes = 0  # begun since that reset
        self.steps = 0  # in the running episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets."""
        if seed is not None:
            self.first_seed, self.episodes = seed, 0
        self.episodes, self.steps = self.episodes + 1, 0
        obs, info = self._ask(lambda: self.env.reset(seed=seed, options=options), 2)
        self._check_info(info)
        return self._checked_obs(obs), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps; the reward comes as a float and the ends as truths."""
        self.steps += 1
        obs, reward, terminated, truncated, info = self._ask(lambda: self.env.step(action), 5)
        values = self._checked_obs(obs)
        self._check_number("reward", reward)
        for name, end in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(end, bool | np.bool_):
                raise self._fault(f"gave {_short(end)} as {name}, where true or false is wanted,")
        self._check_info(info)
        return values, float(reward), bool(terminated), bool(truncated), info

    def _ask(self, call: Callable[[], Any], length: int) -> Any:
        try:
            answer = call()
        except (UsageError, RunError):
            raise
        except OverdueError as late:
            raise self._fault(f"did not answer within {late.seconds:g} seconds") from late
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")
            raise self._fault(f"raised {said} ({place.filename}, line {place.lineno})") from error
        if not isinstance(answer, tuple) or len(answer) != length:
            raise self._fault(f"gave {_short(answer)}, where a tuple of {length} is wanted,")
        return answer

    def _checked_obs(self, obs: Any) -> NDArray[Any]:
        wanted = self.observation_space
        try:
            values = np.asarray(obs)
        except ValueError:  # a ragged list
            values = np.empty((), object)
        if values.shape != wanted.shape or values.dtype.kind not in "biuf":
            came = f"shape {values.shape} and type {values.dtype}"
            raise self._fault(f"gave an observation of {came}, where its space has {wanted.shape} and {wanted.dtype},")
        if values.dtype.kind == "f" and not np.abs(values).max() <= LARGEST:
            first = int(np.argmin(np.abs(values.ravel()) <= LARGEST))
            raise self._fault(f"gave an observation that is not finite, {values.flat[first]} as number {first},")
        return values

    def _check_number(self, name: str, value: Any) -> None:
        if not isinstance(value, bool | int | float | np.number | np.bool_) and getattr(value, "shape", None) != ():
            raise self._fault(f"gave a {name} of {_short(value)}, where one number is wanted,")
        if not abs(float(value)) <= LARGEST:
            raise self._fault(f"gave a {name} that is not finite, {float(value)},")

    def _check_info(self, info: Any) -> None:
        if not isinstance(info, dict):
            raise self._fault(f"gave {_short(info)} as info, where a dict is wanted,")

    def _fault(self, what: str) -> EnvError:
        where = f"step {self.steps} of" if self.steps else "the reset of"
        return EnvError(
            f"{self.name} {what} at {where} episode {self.episodes} after seed {self.first_seed}; nothing of this "
            "step is kept: mend the environment, or wrap it."
        )


def _short(value: object) -> str:
    text = one_line(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


class Deadline(gym.Wrapper):
    """Raises `OverdueError` where an environment does not answer.

    It rests on SIGALRM, so it holds in the main thread, and if nobody else has that signal. Code outside Python that
    never returns cannot be interrupted; such a run hangs until it is killed.

    Args:
        env: The environment.
        seconds: How long a step or a reset may take.
    """

    def __init__(self, env: gym.Env, seconds: float) -> None:
        super().__init__(env)
        check_at_least("step_timeout", seconds, 0.001)
        if seconds == float("inf"):
            raise UsageError("step_timeout must be finite, got inf. Use null for no limit.")
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets, in time."""
        with Alarm(self.seconds):
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps, in time."""
        with Alarm(self.seconds):
            return self.env.step(action)


class Alarm:
    """Raises `OverdueError` in what takes longer than so many seconds.

    The clock goes on in a process that is suspended, and rings when that ends. So it counts half of the time, twice.
    """

    seconds = 0.0  # of the last one
    rung = False

    def __init__(self, seconds: float) -> None:
        self.wanted = seconds

    def __enter__(self) -> None:
        self.armed = _is_main_thread() and not signal.getitimer(signal.ITIMER_REAL)[0] and self._is_ours()
        if self.armed:
            Alarm.seconds, Alarm.rung = self.wanted, False
            signal.setitimer(signal.ITIMER_REAL, self.wanted / 2, self.wanted / 2)

    def __exit__(self, *_: object) -> None:
        if self.armed:
            signal.setitimer(signal.ITIMER_REAL, 0)

    @classmethod
    def _is_ours(cls) -> bool:
        found = signal.getsignal(signal.SIGALRM)
        if found is signal.SIG_DFL:
            signal.signal(signal.SIGALRM, cls._ring)
        return found in (signal.SIG_DFL, cls._ring)

    @classmethod
    def _ring(cls, number: int, frame: object) -> None:
        if cls.rung:
            raise OverdueError(cls.seconds)
        cls.rung = True


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

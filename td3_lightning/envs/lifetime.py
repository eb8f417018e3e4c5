"""Wrappers that preserve the spaces of an environment, limit the time of each call, and close it once."""

import copy
import logging
import signal
import threading
import weakref
from _signal import getsignal  # type: ignore[import-not-found]  # signal.getsignal is slow: it looks for an enum member
from types import FrameType
from typing import Any, SupportsFloat

import gymnasium as gym

from td3_lightning.errors import described, is_ours, require_float

log = logging.getLogger(__name__)
MAX_SLOW_ALARMS = 4  # then the alarm repeats every 50 us


class StepTimeoutError(TimeoutError):
    """Report that an environment did not return within `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} seconds")
        self.seconds = seconds


class IgnoredAlarm(BaseException):
    """Interrupt an environment that catches `StepTimeoutError` and does not return."""


class Lifetime(gym.Wrapper):
    """Preserve the initial spaces of an environment, and close it exactly once.

    The environment is closed by `close`, by garbage collection of this wrapper, or at the exit of the interpreter. A
    failure of `close` is logged as a warning.

    Args:
        env: The environment.
        seconds: Time limit of `close`. None means no limit.
    """

    def __init__(self, env: gym.Env, seconds: float | None = None) -> None:
        super().__init__(env)
        self.seconds = seconds
        for name in ("observation_space", "action_space"):
            if (space := getattr(env, name, None)) is not None:
                setattr(self, name, copy.deepcopy(space))
        self._closing = weakref.finalize(self, close_env, env, name_of(env), seconds)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment. If it was closed before, it will be closed again."""
        if not self._closing.alive:
            self._closing = weakref.finalize(self, close_env, self.env, name_of(self.env), self.seconds)
        return self.env.reset(seed=seed, options=options)

    def close(self) -> None:
        """Close the environment, unless it is closed already."""
        self._closing()


class StepTimeout(Lifetime):
    """Raise `StepTimeoutError` if a call of an environment exceeds a time limit.

    The wrapper uses SIGALRM. It works only in the main thread, and only if no other code uses that signal. It cannot
    interrupt native code that never returns to Python. Such a run hangs until it is killed.

    Args:
        env: The environment.
        seconds: Time limit of a step, a reset or `close` in seconds.
    """

    def __init__(self, env: gym.Env, seconds: float) -> None:
        fix = "Use seconds, or null for no limit."
        self.limit = require_float("step_timeout", seconds, least=0.001, most=1e8, fix=fix)
        super().__init__(env, self.limit)
        self._alarm = Alarm(self.limit)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset within the time limit."""
        with self._alarm:
            return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step within the time limit."""
        with self._alarm:
            return self.env.step(action)


class Clock:
    """The active alarm. Its values are not attributes of a class, because setting those is slow."""

    seconds = 0.0  # time limit
    expirations = 0  # number of times that the timer has expired


CLOCK = Clock()


class Alarm:
    """Raise `StepTimeoutError` in code that exceeds a time limit.

    The system clock continues while a process is suspended, and a timer expires at once when the process continues.
    Therefore the timer counts half of the time limit, twice. It keeps expiring afterwards, in case the code catches the
    exception. If such code returns, the exception is raised on exit.

    Args:
        seconds: Time limit in seconds. None means no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.limit, self.half = seconds, (seconds or 0.0) / 2

    def __enter__(self) -> None:
        self.armed = False
        if self.limit is None or threading.get_ident() != threading.main_thread().ident:
            return
        if getsignal(signal.SIGALRM) is HANDLER or self._install():
            remaining, interval = signal.setitimer(signal.ITIMER_REAL, self.half, self.half)
            if remaining:  # other code uses the timer
                signal.setitimer(signal.ITIMER_REAL, remaining, interval)
            else:
                self.armed, CLOCK.seconds = True, self.limit

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self.armed:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        expirations, CLOCK.expirations = CLOCK.expirations, 0
        if expirations > 1 and not (error is not None and is_ours(error) and not isinstance(error, IgnoredAlarm)):
            raise StepTimeoutError(CLOCK.seconds) from error

    def _install(self) -> bool:
        """Install the handler of the timer. Return False if other code uses the signal or the timer."""
        is_free = getsignal(signal.SIGALRM) == signal.SIG_DFL and not signal.getitimer(signal.ITIMER_REAL)[0]
        if is_free:
            signal.signal(signal.SIGALRM, HANDLER)
        return is_free

    @staticmethod
    def _expire(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is Alarm.__exit__.__code__:
            return  # the call is over
        CLOCK.expirations += 1
        if CLOCK.expirations == 2:
            raise StepTimeoutError(CLOCK.seconds)
        if CLOCK.expirations == MAX_SLOW_ALARMS:
            # Only an alarm outside the `try` ends a loop around `try: ... except BaseException: pass`.
            signal.setitimer(signal.ITIMER_REAL, 50e-6, 50e-6)
        if CLOCK.expirations > 2:
            raise IgnoredAlarm


HANDLER = Alarm._expire  # the handler of SIGALRM


def close_env(env: gym.Env | gym.vector.VectorEnv, name: str, seconds: float | None = None) -> None:
    """Close an environment. Log a warning on failure, because the work of the run is already done.

    Args:
        env: The environment.
        name: Its name in the warning.
        seconds: Time limit in seconds. None means no limit.
    """
    try:
        with Alarm(seconds):
            env.close()
    except BaseException as error:  # an environment may call sys.exit
        if must_pass(error):
            raise
        log.warning("%s raised %s in close(). The run is not affected.", name, described(error))


def must_pass(error: BaseException) -> bool:
    """Return whether an exception comes from this package or from Ctrl-C, and not from the environment."""
    if isinstance(error, KeyboardInterrupt):  # under another handler, Ctrl-C does not raise KeyboardInterrupt
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return is_ours(error) and not isinstance(error, StepTimeoutError)


def name_of(env: gym.Env) -> str:
    """Return the id of an environment, or the name of its class if it has no id."""
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec else type(env.unwrapped).__name__

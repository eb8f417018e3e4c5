"""Life of an environment: its first spaces, a time limit for each call, and a close that happens once."""

import copy
import logging
import signal
import threading
import weakref
from types import FrameType
from typing import Any, SupportsFloat

import gymnasium as gym

from td3_lightning.errors import described, is_ours, require_float

log = logging.getLogger(__name__)


STUBBORN = 4  # rings of an alarm after which it rings every 50 us


class StepTimeoutError(TimeoutError):
    """An environment did not answer within `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} seconds")
        self.seconds = seconds


class IgnoredAlarm(BaseException):
    """Raised in an environment that has caught an `StepTimeoutError` and does not return."""


class Lifetime(gym.Wrapper):
    """Keep the spaces that an environment begins with, and close it once, however the program ends.

    The environment is closed by `close`, when this wrapper is garbage-collected, or when the interpreter exits. If its
    `close` fails, a warning says so, and the program continues.

    Args:
        env: The environment.
        seconds: Time limit of `close`; None waits without limit.
    """

    def __init__(self, env: gym.Env, seconds: float | None = None) -> None:
        super().__init__(env)
        self.seconds = seconds
        for name in ("observation_space", "action_space"):
            if (space := getattr(env, name, None)) is not None:
                setattr(self, name, copy.deepcopy(space))
        self._closing = weakref.finalize(self, close_env, env, name_of(env), seconds)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; one that was closed before is closed again later."""
        if not self._closing.alive:
            self._closing = weakref.finalize(self, close_env, self.env, name_of(self.env), self.seconds)
        return self.env.reset(seed=seed, options=options)

    def close(self) -> None:
        """Close the environment, unless that is done already."""
        self._closing()


class StepTimeout(Lifetime):
    """Raise `StepTimeoutError` if an environment takes too long.

    This uses SIGALRM. It works in the main thread, if no other code uses that signal. Code outside Python that
    never returns cannot be interrupted; such a run hangs until it is killed.

    Args:
        env: The environment.
        seconds: Time limit of a step, a reset or `close`.
    """

    def __init__(self, env: gym.Env, seconds: float) -> None:
        self.limit = require_float("step_timeout", seconds, least=0.001, fix="Use seconds, or null for no limit.")
        super().__init__(env, self.limit)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset within the time limit."""
        with Alarm(self.limit):
            return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step within the time limit."""
        with Alarm(self.limit):
            return self.env.step(action)


class Alarm:
    """Raise `StepTimeoutError` in code that takes longer than a number of seconds.

    The system's clock continues while a process is suspended, and the alarm rings when that ends. Therefore it counts
    half of the time, twice. Afterwards it rings again and again, for code that catches the exception. If such code
    returns, the exception is raised at the end.

    Args:
        seconds: The time limit; None is no limit.
    """

    seconds = 0.0  # of the running one
    rings = 0

    def __init__(self, seconds: float | None) -> None:
        self.wanted = seconds

    def __enter__(self) -> None:
        idle = self.wanted is not None and _is_main_thread() and not signal.getitimer(signal.ITIMER_REAL)[0]
        self.armed = idle and self._is_ours()
        if self.armed and self.wanted is not None:
            Alarm.seconds, Alarm.rings = self.wanted, 0
            signal.setitimer(signal.ITIMER_REAL, self.wanted / 2, self.wanted / 2)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self.armed:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        passes = error is not None and is_ours(error) and not isinstance(error, IgnoredAlarm)
        if Alarm.rings > 1 and not passes:
            raise StepTimeoutError(Alarm.seconds) from error

    @classmethod
    def _is_ours(cls) -> bool:
        found = signal.getsignal(signal.SIGALRM)
        if found is signal.SIG_DFL:
            signal.signal(signal.SIGALRM, cls._ring)
        return found in (signal.SIG_DFL, cls._ring)

    @classmethod
    def _ring(cls, number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is cls.__exit__.__code__:
            return  # the call is over
        cls.rings += 1
        if cls.rings == 2:
            raise StepTimeoutError(cls.seconds)
        if cls.rings == STUBBORN:
            # A loop around `try: ... except BaseException: pass` is left if it rings between the two.
            signal.setitimer(signal.ITIMER_REAL, 50e-6, 50e-6)
        if cls.rings > 2:
            raise IgnoredAlarm


def close_env(env: gym.Env, name: str, seconds: float | None = None) -> None:
    """Close an environment. If that fails, log a warning, because the run must not fail after its work is done.

    Args:
        env: The environment.
        name: Its name in the warning.
        seconds: Time limit; None waits without limit.
    """
    try:
        with Alarm(seconds):
            env.close()
    except BaseException as error:  # an environment may call sys.exit
        if must_pass(error):
            raise
        log.warning("%s raised %s when it was closed. The run is not affected.", name, described(error))


def must_pass(error: BaseException) -> bool:
    """Tell whether an exception is no fault of the environment that it was raised in: this package's, or a Ctrl-C."""
    if isinstance(error, KeyboardInterrupt):  # with another handler, Ctrl-C raises something else
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return is_ours(error) and not isinstance(error, StepTimeoutError)


def name_of(env: gym.Env) -> str:
    """Name an environment by its id, or by its class if it has none."""
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec else type(env.unwrapped).__name__


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

"""Training environments in processes of their own, which import neither PyTorch nor Lightning."""

import atexit
import multiprocessing.connection
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from td3_lightning.envs.checked import RestorableEnv
from td3_lightning.envs.reports import split_info
from td3_lightning.errors import EnvError, UsageError, described, is_ours, require_int

MAX_WORKERS = 256  # so that a checkpoint from elsewhere cannot start thousands of processes
LIMIT = 600.0  # seconds that a step or a reset may take
GRACE = 5.0  # seconds that a step may take at the end of a run
FIX = "Correct the environment, or use data.vector_env sync to see its error."
SIGNALS = [  # the training process handles them
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)
]


class Workers(AsyncVectorEnv):
    """Step each environment in its own process, and reset it in the step that ends its episode.

    Args:
        make: Function that makes one environment. It must be picklable by cloudpickle.
        seeds: Seeds of the global random generators, one for each process.
        name: Name of the environment in error messages.

    Raises:
        UsageError: The environment cannot be sent to another process.
        EnvError: A process ended, an environment failed, or it did not answer within ten minutes.
    """

    def __init__(self, make: Callable[[], gym.Env], seeds: Sequence[int], name: str) -> None:
        self.name = name
        require_int("data.num_envs with a process for each", len(seeds), most=MAX_WORKERS)
        makers = [partial(_make, make, index, seed, os.getpid()) for index, seed in enumerate(seeds)]
        atexit.register(self.kill)  # before multiprocessing ends the processes with a signal that they ignore
        try:
            # A fork of this process would copy the locks of its threads.
            with signals_blocked():
                super().__init__(makers, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
        except Exception as error:
            self.kill()
            if is_ours(error):
                raise
            raise UsageError(
                f"data.vector_env must be sync if {name} cannot be made in another process ({described(error)}). Use "
                'sync, or define the environment in a module. A script requires `if __name__ == "__main__":`.'
            ) from error

    def step_async(self, actions: Any) -> None:
        """Send the actions."""
        with self._watched():
            super().step_async(actions)

    def step_wait(self, timeout: float | None = LIMIT) -> Any:
        """Return the results of the step, with the last observations and the reports of the episodes that ended."""
        with self._watched():
            *results, info = super().step_wait(timeout)
        if "final_obs" in info:
            ended = np.flatnonzero(info["_final_obs"]).tolist()
            reports = split_info(info["final_info"], ended, self.num_envs)
            info = {"last_obs": info["final_obs"][ended].tolist(), "reports": reports}
        return *results, info

    def reset_wait(self, timeout: float | None = LIMIT) -> Any:
        """Return the results of the reset."""
        with self._watched():
            return super().reset_wait(timeout)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment."""
        with self._watched():
            return super().call(name, *args, **kwargs)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Raise `EnvError` for a lost process, without Gymnasium's print of the traceback of a worker."""
        level, gym.logger.min_level = gym.logger.min_level, gym.logger.ERROR + 1
        try:
            yield
        except Exception as error:
            lost = None if is_ours(error) else self._lost(error)
            self.kill()
            if lost is None:
                raise
            raise lost from error
        finally:
            gym.logger.min_level = level

    def _lost(self, error: Exception) -> EnvError:
        """Return an error that names the environment and how its process ended."""
        if isinstance(error, multiprocessing.TimeoutError):
            what = f"did not return within {LIMIT:g} seconds"
            return EnvError(f"An environment of {self.name} {what}. This step is not stored. {FIX}")
        ended = multiprocessing.connection.wait([process.sentinel for process in self.processes], GRACE)
        index = next((place for place, each in enumerate(self.processes) if each.sentinel in ended), 0)
        self.processes[index].join(GRACE)
        code = self.processes[index].exitcode
        how = (
            f"exited with status {code}" if code is None or code >= 0 else f"was killed by {signal.Signals(-code).name}"
        )
        return EnvError(
            f"Environment {index} of {self.name} is lost, because its process {how}. This step is not stored. {FIX}"
        )

    def kill(self) -> None:
        """End the processes."""
        atexit.unregister(self.kill)
        for process in getattr(self, "processes", ()):
            with suppress(ValueError, AttributeError):  # it has not been started
                process.kill()
                process.join()
        self.closed = True

    def close_extras(self, timeout: float | None = GRACE, terminate: bool = False) -> None:
        """Close the environments, then end the processes."""
        with suppress(Exception), self._watched():  # the work of the run is done
            super().close_extras(timeout=GRACE)
        self.kill()


def _make(make: Callable[[], gym.Env], index: int, seed: int, parent: int) -> gym.Env:
    """Make an environment, and in a worker prepare the process before. Gymnasium makes one in this process as well."""
    if os.getpid() != parent:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  # what an environment without its own generator uses
    env = RestorableEnv(make())
    if os.getpid() != parent and "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    env.name = f"Environment {index} of {env.name}"
    return env


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals that stop a run, so that workers inherit this. This process receives them afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""Training environments in several processes.

Gymnasium's `AsyncVectorEnv` (version 1.4) is not used. It starts one process per environment. It reports a killed
worker as `EOFError` without naming the environment, and does not end a worker that hangs unless each call has a
timeout. It cannot give each environment its own argument, which is required to restore a state.
"""

import itertools
import logging
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Pipe
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # a requirement of Gymnasium
import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from td3_lightning.envs.env_group import Step
from td3_lightning.envs.shared_arrays import SharedArrays, new_memory
from td3_lightning.envs.worker import SIGNALS
from td3_lightning.errors import EnvError, RunError, UsageError, one_line
from td3_lightning.seeding import derive_seed

MAX_WAIT = 2e6  # seconds, about 23 days; the operating system counts milliseconds in 32 bits
GRACE = 5.0  # seconds that a worker has beyond the time limit of its environments
FIX = "Correct the environment, or use data.env_workers 0 to see its error."


class WorkerError(Exception):
    """Show the traceback of a worker as the cause of its exception."""


class WorkerProcess:
    """A process that steps some of the environments.

    Args:
        indices: Numbers of its environments.
        memory: File descriptor of the shared memory.
        timeout: Time limit of one step or one reset of one environment in seconds.
    """

    def __init__(self, indices: range, memory: int, timeout: float | None) -> None:
        self.indices, self.busy = indices, False
        # Seconds for one answer: a step may contain a reset of each environment, which has a separate time limit.
        self.limit = None if timeout is None else 2 * timeout * len(indices) + GRACE
        self.names = [f"Environment {index}" for index in indices]
        self.arrays: SharedArrays | None = None
        self.connection, other_end = Pipe()
        with other_end:
            self.process = _start(indices, memory, other_end.fileno())

    def send(self, name: str, *arguments: Any) -> None:
        """Request a call. The next call of this object must be `receive`."""
        self.busy = True
        try:
            self.connection.send_bytes(pickle.dumps((name, arguments)))
        except OSError:
            raise self._lost() from None

    def receive(self, limit: float | None = None) -> Any:
        """Return the result of the call.

        Args:
            limit: Time limit in seconds. None means no limit.

        Raises:
            EnvError: An environment failed, or the process ended or did not answer within the limit.
        """
        # Half of the limit, twice: the clock continues while both processes are suspended.
        half = None if limit is None else min(limit / 2, MAX_WAIT)
        if half is not None and not self.connection.poll(half) and not self.connection.poll(half):
            self.process.kill()
            raise EnvError(f"{self._current} did not return within {limit:g} seconds. This step is not stored. {FIX}")
        try:
            succeeded, result, text, logged = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise self._lost() from None
        self.busy = False
        for record in logged:
            logging.getLogger(record.name).handle(record)
        if not succeeded:
            raise result from WorkerError(f"\n{text}")
        return result

    @property
    def _current(self) -> str:
        """Return the name of the environment that is stepped or reset."""
        turn = self.indices.start if self.arrays is None else int(self.arrays.turn[self.indices.start])
        return self.names[turn - self.indices.start]

    def _lost(self) -> EnvError:
        """Return an error that names how the process ended."""
        self.busy = True  # it does not answer any more
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        status = self.process.returncode
        ended = f"exited with status {status}"
        if status is not None and status < 0:
            ended = f"was killed by {signal.Signals(-status).name}"
        return EnvError(f"{self._current} is lost, because its process {ended}. This step is not stored. {FIX}")


def _start(indices: range, memory: int, connection: int) -> "subprocess.Popen[bytes]":
    """Start a worker in a new interpreter with the module path of this one.

    A fork of this process would copy its threads' locks, and `multiprocessing` would run the script of a Python user
    again. The signals are blocked until the worker handles them.
    """
    arguments = f"{connection}, {memory}, {indices.start}, {indices.stop}, {os.getpid()}"
    path = [folder for folder in sys.path if isinstance(folder, str)]  # Python ignores others, for example a Path
    program = f"import sys; sys.path[:] = {path!r}; from td3_lightning.envs.worker import main; main({arguments})"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", program], pass_fds=(connection, memory), stdin=subprocess.DEVNULL
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerPool:
    """Step environments in several processes. The results are those of `EnvGroup`, bit for bit.

    Actions, observations, rewards and ends are in shared memory.

    Args:
        make: Function that makes one environment. It must be picklable by cloudpickle.
        num_envs: Number of environments.
        workers: Number of processes, at most `num_envs`.
        timeout: Time limit of one step or one reset of one environment in seconds. None means no limit.

    Raises:
        UsageError: The environments cannot be made in another process.
        EnvError: The constructor of an environment failed.
    """

    def __init__(self, make: Callable[[], gym.Env], num_envs: int, workers: int, timeout: float | None) -> None:
        pickled, memory = _pickled(make), new_memory()
        bounds = [num_envs * worker // workers for worker in range(workers + 1)]
        self.workers: list[WorkerProcess] = []
        self._closing = weakref.finalize(self, _close, self.workers)  # also at the exit of the interpreter
        self.obs = np.empty((0, 0), np.float32)
        try:
            for first, end in itertools.pairwise(bounds):
                self.workers.append(WorkerProcess(range(first, end), memory, timeout))
            self._make(pickled, num_envs, memory)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(memory)

    def _make(self, pickled: bytes, num_envs: int, memory: int) -> None:
        for worker in self.workers:
            seed = derive_seed("environment worker", worker.indices.start)
            worker.send("make", pickled, seed, logging.getLogger().level)
        self.spaces: list[tuple[gym.Space[Any], gym.Space[Any]]] = []
        for worker in self.workers:
            worker.names, spaces = worker.receive()
            self.spaces += spaces
        sizes = num_envs, *(int(np.prod(space.shape or ())) for space in self.spaces[0])
        self._arrays = SharedArrays(memory, *sizes)
        self._arrays.turn[:] = range(num_envs)
        self._call("share", [sizes] * len(self.workers))
        for worker in self.workers:
            worker.arrays = self._arrays

    def _call(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of each worker at the same time, and return the results."""
        for worker, own in zip(self.workers, arguments, strict=True):
            worker.send(name, *own)
        return [worker.receive(worker.limit if name == "reset" else None) for worker in self.workers]

    def _parts(self, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return each worker's part of a list with one value per environment."""
        return [(values[worker.indices.start : worker.indices.stop],) for worker in self.workers]

    def reset(self, seeds: Sequence[int]) -> None:
        """Start an episode in each environment, with one seed per environment."""
        self._call("reset", self._parts(seeds))
        self.obs = self._arrays.obs.copy()

    def begin(self, action: NDArray[np.float32]) -> None:
        """Begin a step of each environment. It runs in the workers until `finish`.

        Args:
            action: Actions (num_envs, action_dim).

        Raises:
            EnvError: A process ended.
        """
        self._arrays.action[:] = action
        for worker in self.workers:
            worker.send("step")

    def finish(self) -> Step:
        """Return the results of the step. Environments whose episode ended are reset.

        Raises:
            EnvError: An environment or its process failed.
        """
        reports = [report for worker in self.workers for report in worker.receive(worker.limit)]
        arrays, before = self._arrays, self.obs
        self.obs = arrays.obs.copy()
        ends = arrays.terminated.tolist(), arrays.truncated.tolist()
        return Step(before, arrays.action.copy(), arrays.reward.tolist(), *ends, arrays.last_obs.copy(), reports)

    def episode_steps(self) -> list[int]:
        """Return the number of steps in the running episode of each environment."""
        return self._of_all("episode_steps")

    def states(self) -> list[dict[str, Any]]:
        """Return the running episode of each environment."""
        return self._of_all("states")

    def generators(self) -> list[str]:
        """Return the kind of the random generator of each environment."""
        return self._of_all("generators")

    def _of_all(self, name: str) -> list[Any]:
        """Call a method without arguments in each worker, and return its results for all environments."""
        return [result for own in self._call(name, [()] * len(self.workers)) for result in own]

    def restore(self, states: Sequence[dict[str, Any]]) -> list[bool]:
        """Restore the running episodes, and return which of them are bit-identical."""
        same = self._call("restore", self._parts(states))
        self.obs = self._arrays.obs.copy()
        return [each for own in same for each in own]

    def close(self) -> None:
        """Close the environments, and end the processes."""
        self._closing()


def _pickled(make: Callable[[], gym.Env]) -> bytes:
    """Pickle a function and the registrations of its environment."""
    source = getattr(make, "args", (None,))[0]
    try:
        # An id without its version means the newest one.
        specs = [spec for name, spec in gym.registry.items() if source in (name, name.rpartition("-v")[0])]
        return bytes(cloudpickle.dumps((specs, make)))
    except Exception as error:  # a user's object may raise anything
        raise UsageError(
            f"data.env_workers must be 0 if the environment cannot be sent to another process ({one_line(error)}). Use "
            "0, or create such objects in the constructor of the environment."
        ) from error


def _close(workers: Sequence[WorkerProcess]) -> None:
    """Close the environments of all workers, and end their processes."""
    idle = [worker for worker in workers if not worker.busy]
    try:
        for worker in workers:
            with suppress(EnvError):
                worker.send("close")
        for worker in workers:
            with suppress(RunError, UsageError, subprocess.TimeoutExpired):
                worker.receive(worker.limit if worker in idle else GRACE)
                worker.process.wait(GRACE)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
            worker.connection.close()

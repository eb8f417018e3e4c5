"""The process of a worker: it steps some of the training environments."""

import ctypes
import logging
import os
import pickle
import queue
import random
import signal
import sys
import traceback
from collections.abc import Callable
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from typing import Any

import gymnasium as gym
import numpy as np

from td3_lightning.envs.after_import import after_import
from td3_lightning.envs.env_group import EnvGroup
from td3_lightning.envs.shared_arrays import SharedArrays
from td3_lightning.envs.spaces import check_are_new
from td3_lightning.errors import EnvError, RunError, UsageError, described

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # the training process handles them


class Worker:
    """Answer the requests of the training process. The group answers those that have no method here, such as `close`.

    Args:
        indices: Numbers of the environments of this worker.
        memory: File descriptor of the shared memory.
    """

    def __init__(self, indices: range, memory: int) -> None:
        self.indices, self.memory = indices, memory
        self.group = EnvGroup(gym.Env, ())
        self.arrays: SharedArrays | None = None

    def make(
        self, pickled: bytes, seed: int, log_level: int
    ) -> tuple[list[str], list[tuple[gym.Space[Any], gym.Space[Any]]]]:
        """Make the environments, and return their names and spaces.

        Args:
            pickled: Registrations of the environment, and the function that makes it.
            seed: Seed of the global random generators.
            log_level: Level of the root logger.
        """
        logging.getLogger().setLevel(log_level)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  # what an environment without its own generator uses
        after_import("torch", lambda torch: torch.manual_seed(seed))  # most environments do not import it
        try:
            specs, make = pickle.loads(pickled)
        except Exception as error:  # importing a module of the user may raise anything
            raise UsageError(
                f"data.env_workers must be 0 if another process cannot import the environment ({described(error)}). "
                "Use 0, or define the environment in a module."
            ) from error
        for spec in specs:
            gym.registry.setdefault(spec.id, spec)
        self.group = EnvGroup(make, self.indices, self._begin_turn)
        check_are_new(self.group.envs, self.group.envs[0].name)
        return [env.name for env in self.group.envs], self.group.spaces

    def share(self, num_envs: int, obs_dim: int, action_dim: int) -> None:
        """Map the shared memory."""
        self.arrays = SharedArrays(self.memory, num_envs, obs_dim, action_dim)

    def reset(self, seeds: list[int]) -> None:
        """Start an episode in each environment."""
        self.group.reset(seeds)
        self._write_obs()

    def step(self) -> list[dict[str, float]]:
        """Step each environment with its shared action, and return the reports of the episodes that ended."""
        assert self.arrays is not None
        own = slice(self.indices.start, self.indices.stop)
        self.group.begin(self.arrays.action[own].copy())
        step = self.group.finish()
        self.arrays.last_obs[own], self.arrays.reward[own] = step.last_obs, step.reward
        self.arrays.terminated[own], self.arrays.truncated[own] = step.terminated, step.truncated
        self._write_obs()
        return step.reports

    def restore(self, states: list[dict[str, Any]]) -> list[bool]:
        """Restore the running episodes."""
        same = self.group.restore(states)
        self._write_obs()
        return same

    def _begin_turn(self, place: int) -> None:
        if self.arrays is not None:
            self.arrays.turn[self.indices.start] = self.indices[place]

    def _write_obs(self) -> None:
        assert self.arrays is not None
        self.arrays.obs[self.indices.start : self.indices.stop] = self.group.obs


def main(connection_fd: int, memory: int, first: int, end: int, parent: int) -> None:
    """Answer requests until `close`, or until the training process ends."""
    end_with(parent)
    for number in SIGNALS:
        signal.signal(number, _ignore)  # not SIG_IGN, which a simulator in a child process would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked by the training process during the start
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    logging.getLogger().addHandler(QueueHandler(records))
    connection = Connection(connection_fd)
    serve(Worker(range(first, end), memory), connection, records)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as in multiprocessing: the environments are closed, and the exit of an interpreter is slow


def serve(worker: Worker, connection: Connection, records: "queue.SimpleQueue[logging.LogRecord]") -> None:
    """Answer each request with its result or its exception, and the log records since the last answer."""
    name = ""
    while name != "close":
        try:
            name, arguments = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):  # the training process ended, the latter before it read an answer
            name, arguments = "close", ()
        owner = worker if hasattr(worker, name) else worker.group
        answer = _answer(getattr(owner, name), arguments)
        logged = [records.get() for _ in range(records.qsize())]
        try:
            connection.send_bytes(pickle.dumps((*answer, logged)))
        except OSError:  # the training process ended
            return


def _answer(call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any, str]:
    """Return whether a call succeeded, its result or exception, and the traceback."""
    try:
        return True, call(*arguments), ""
    except BaseException as error:  # an environment may raise anything
        ours = error if isinstance(error, UsageError | RunError) else EnvError(f"A worker raised {described(error)}.")
        return False, type(ours)(str(ours)), traceback.format_exc()


def end_with(parent: int) -> None:
    """Make the system kill this process when the training process ends, even in native code that never returns."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _ignore(number: int, frame: object) -> None:
    pass

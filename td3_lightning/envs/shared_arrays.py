"""Arrays in memory that several processes share."""

import mmap
import os
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # bytes


class SharedArrays:
    """Map the actions and the results of a step of all environments.

    The memory has no name, so the system frees it when the last process ends, even after SIGKILL.

    Args:
        fd: File descriptor of the memory, from `new_memory`.
        num_envs: Number of environments.
        obs_dim: Size of an observation.
        action_dim: Size of an action.
    """

    def __init__(self, fd: int, num_envs: int, obs_dim: int, action_dim: int) -> None:
        fields: list[tuple[tuple[int, ...], type]] = [
            *(((num_envs, action_dim), np.float32), ((num_envs, obs_dim), np.float32)),
            *(((num_envs, obs_dim), np.float32), ((num_envs,), np.float64)),
            *(((num_envs,), np.bool_), ((num_envs,), np.bool_), ((num_envs,), np.int64)),
        ]
        sizes = [int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in fields]
        starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
        if os.fstat(fd).st_size < starts[-1]:
            os.ftruncate(fd, int(starts[-1]))
        memory = mmap.mmap(fd, int(starts[-1]))
        views: list[NDArray[Any]] = [
            np.frombuffer(memory, kind, int(np.prod(shape)), int(start)).reshape(shape)
            for (shape, kind), start in zip(fields, starts[:-1], strict=True)
        ]
        self.action: NDArray[np.float32] = views[0]
        self.obs: NDArray[np.float32] = views[1]  # input of the next action
        self.last_obs: NDArray[np.float32] = views[2]  # before any reset
        self.reward: NDArray[np.float64] = views[3]
        self.terminated: NDArray[np.bool_] = views[4]
        self.truncated: NDArray[np.bool_] = views[5]
        # At a worker's first index: the environment that it steps, resets or restores.
        self.turn: NDArray[np.int64] = views[6]


def new_memory() -> int:
    """Return a file descriptor of new memory."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("td3_lightning")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

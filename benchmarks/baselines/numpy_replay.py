"""The replay buffer of the reimplemented loops: five NumPy arrays, as most of the originals use."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class NumpyReplay:
    """A ring buffer of transitions with one array for each field.

    Args:
        env: The environment, for the sizes of the fields.
        capacity: Number of transitions kept.
        dtype: Data type of every field.
    """

    def __init__(self, env: Any, capacity: int, dtype: DTypeLike = np.float32) -> None:
        obs_dim, action_dim = env.observation_space.shape[0], env.action_space.shape[0]
        widths = {"obs": obs_dim, "action": action_dim, "next_obs": obs_dim, "reward": 1, "terminated": 1}
        self.arrays = {name: np.zeros((capacity, width), dtype) for name, width in widths.items()}
        self.capacity, self.cursor, self.size = capacity, 0, 0
        self.rng = np.random.default_rng(0)

    @property
    def transition_bytes(self) -> float:
        """Return the bytes of one transition."""
        return sum(array.nbytes for array in self.arrays.values()) / self.capacity

    def add(self, **fields: Any) -> None:
        """Overwrite the oldest transition."""
        for name, value in fields.items():
            self.arrays[name][self.cursor] = value
        self.cursor = (self.cursor + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, batch_size: int) -> list[NDArray[Any]]:
        """Draw obs, action, next_obs, reward and terminated, each (batch_size, size)."""
        rows = self.rng.integers(self.size, size=batch_size)
        return [array[rows] for array in self.arrays.values()]

"""Sum tree: numbers with the sums of their blocks, for draws in proportion to the numbers."""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.replay.memory import lazy_zeros

SHIFT = 5


FANOUT = 1 << SHIFT  # children of a node


MAX_ROOTS = 1024  # sums at the top, which are searched together


class SumTree:
    """Hold non-negative numbers, all 0 at first, and find the one that contains a point of their running sum.

    A sum is always computed from all of its children, in float64 and in their order. So it depends only on the numbers,
    not on the changes that led to them, and rounding errors do not accumulate.

    Args:
        size: How many numbers.
    """

    def __init__(self, size: int) -> None:
        blocks = -(-size // FANOUT)
        self.levels = [torch.from_numpy(lazy_zeros((blocks, FANOUT), np.dtype(np.float32)))]
        while self.levels[-1].numel() > MAX_ROOTS:
            blocks = -(-len(self.levels[-1]) // FANOUT)
            self.levels.append(torch.zeros(blocks, FANOUT, dtype=torch.float64))
        self.values: NDArray[np.float32] = self.levels[0].numpy().reshape(-1)

    def set(self, places: NDArray[np.int64], values: NDArray[np.float32] | float) -> None:
        """Assign numbers (n,) at some places (n,). The last number counts if a place is repeated."""
        self.values[places] = values
        changed = torch.from_numpy(places)
        for lower, upper in pairwise(self.levels):
            # Many changes reach almost every block, and some blocks many times.
            changed = changed >> SHIFT if len(changed) < len(lower) else torch.arange(len(lower))
            upper.view(-1)[changed] = _running_sums(lower, changed)[:, -1]

    def find(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the places (n,) whose part of the running sum contains the given shares, (n,) in [0, 1), of it.

        The total must be above 0. The place of a number that is 0 is never returned.
        """
        roots = self.levels[-1].view(-1).double().cumsum(0).numpy()
        points = np.minimum(shares * roots[-1], _below(roots[-1]))
        places: NDArray[np.int64] = roots.searchsorted(points, side="right")
        points -= roots.take(places - 1) * (places > 0)
        for level in self.levels[-2::-1]:
            sums = _running_sums(level, torch.from_numpy(places))
            # Rounding may move a point to the end of its block, which belongs to no child.
            points = np.minimum(points, _below(sums[:, -1].numpy()))
            child = torch.searchsorted(sums, torch.from_numpy(points[:, None]), right=True).numpy()[:, 0]
            points -= sums.numpy().take(np.arange(-1, sums.numel() - 1, FANOUT) + child) * (child > 0)
            places = places * FANOUT + child
        return places


def _below(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest numbers below the given ones, which are above 0."""
    return np.nextafter(numbers, 0.0)


def _running_sums(level: Tensor, blocks: Tensor) -> Tensor:
    """Return the running sums (n, FANOUT) inside some blocks (n,) of a level, in float64."""
    return level.index_select(0, blocks).double().cumsum(1)

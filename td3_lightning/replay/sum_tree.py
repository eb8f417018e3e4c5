"""Sum tree: numbers with the sums of their blocks, for draws in proportion to the numbers."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from td3_lightning.replay.memory import lazy_zeros

SHIFT = 5
FANOUT = 1 << SHIFT  # children of a node
FEW_BLOCKS = 32  # NumPy is faster than torch up to this number
MAX_ROOTS = 1024  # sums at the top, which are searched together


class SumTree:
    """Hold non-negative numbers, all 0 at first, and find the one that contains a point of their running sum.

    A sum is always computed from all of its children, in float64 and in their order. So it depends only on the
    numbers, not on earlier changes, and rounding errors do not accumulate.

    Args:
        size: Number of leaves.
    """

    def __init__(self, size: int) -> None:
        blocks = -(-size // FANOUT)
        self.levels: list[NDArray[Any]] = [lazy_zeros((blocks, FANOUT), np.dtype(np.float32))]
        while self.levels[-1].size > MAX_ROOTS:
            blocks = -(-len(self.levels[-1]) // FANOUT)
            self.levels.append(np.zeros((blocks, FANOUT)))
        # The running sums of the blocks between the leaves and the roots. Those of the leaves would triple the memory.
        self._running = [level.copy() for level in self.levels[1:-1]]
        self.values: NDArray[np.float32] = self.levels[0].reshape(-1)

    def set(self, places: NDArray[np.int64], values: NDArray[np.float32] | float) -> None:
        """Assign numbers (n,) at some places (n,). The last number counts if a place is repeated."""
        self.values[places] = values
        changed = places
        for depth, (lower, upper) in enumerate(pairwise(self.levels)):
            # Many changes reach almost every block, and some blocks many times.
            changed = changed >> SHIFT if len(changed) < len(lower) else np.arange(len(lower))
            sums = _running_sums(lower, changed)
            upper.reshape(-1)[changed] = sums[:, -1]
            if depth > 0:
                self._running[depth - 1][changed] = sums

    def find(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the leaves (n,) at which the running sum exceeds `shares` (n,), in [0, 1), of the total.

        The total must be above 0. The place of a number that is 0 is never returned.
        """
        order = shares.argsort()  # sorted points are found faster, because they share blocks
        roots = self.levels[-1].reshape(-1).cumsum(dtype=np.float64)
        points = np.minimum(shares[order] * roots[-1], _below(roots[-1]))
        places: NDArray[np.int64] = roots.searchsorted(points, side="right")
        before = roots.take(places - 1) * (places > 0)
        for depth in range(len(self.levels) - 2, -1, -1):
            is_leaf = depth == 0
            sums = _running_sums(self.levels[0], places) if is_leaf else self._running[depth - 1].take(places, axis=0)
            # Rounding may move a point to the end of its block, which belongs to no child.
            points = np.minimum(points - before, _below(sums[:, -1]))
            child = (sums > points[:, None]).argmax(1)  # the first one; there is one, because a point is below the last
            places = places * FANOUT + child
            if not is_leaf:
                before = sums.take(np.arange(-1, sums.size - 1, FANOUT) + child) * (child > 0)
        found = np.empty_like(places)
        found[order] = places
        return found


def _below(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest numbers below the given ones, which are above 0."""
    return np.nextafter(numbers, 0.0)


def _running_sums(level: NDArray[Any], blocks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the running sums (n, FANOUT) inside some blocks (n,) of a level, in float64.

    Both libraries add in the same order. NumPy is faster for few blocks, torch for many.
    """
    if len(blocks) <= FEW_BLOCKS:
        few: NDArray[np.float64] = level.take(blocks, axis=0).cumsum(1, dtype=np.float64)
        return few
    many = torch.from_numpy(level).index_select(0, torch.from_numpy(blocks))
    sums: NDArray[np.float64] = many.cumsum(1, dtype=torch.float64).numpy()
    return sums

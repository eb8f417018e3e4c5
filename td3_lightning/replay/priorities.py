"""Priorities of the transitions for loss-adjusted prioritized experience replay (LAP, Fujimoto et al., 2020)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.errors import UsageError
from td3_lightning.replay.ring import Ring

MIN_PRIORITY = 1.0  # also the threshold of the Huber loss
MAX_FLOAT32 = np.finfo(np.float32).max
SHIFT = 5
FANOUT = 1 << SHIFT  # children of a node of the sum tree
FEW_BLOCKS = 32  # NumPy is faster than torch up to this number
MAX_ROOTS = 1024  # sums at the top, which are searched together


class Priorities:
    """Draw transitions in proportion to max(|TD error|, 1)^alpha, which is at least 1.

    A row has a priority while a transition starts there, and 0 otherwise. New transitions get the largest priority so
    far. The indices of the rings define which transitions exist, and `synchronize` compares them with the priorities.

    Args:
        rings: The rings, whose rows follow each other in one array.
        alpha: Exponent of the priorities, in (0, 1].
    """

    def __init__(self, rings: Sequence[Ring], alpha: float) -> None:
        self.rings, self.alpha = rings, alpha
        self.max_priority = MIN_PRIORITY  # since the last call of `reset_max_priority`
        self._clear()

    def _clear(self) -> None:
        self._tree = SumTree(len(self.rings) * len(self.rings[0].rows))
        # Of each ring: numbers of the oldest row with a priority, and of the first transition without one.
        self._known = [(0, 0)] * len(self.rings)
        self._drawn: NDArray[np.int64] | None = None  # rows of the last batch, until they are updated

    def draw(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Draw the first rows (batch,) of transitions. At least one must exist."""
        self.synchronize()
        shares = torch.rand(batch_size, generator=generator, dtype=torch.float64).numpy()
        self._drawn = self._tree.find(shares)
        return torch.from_numpy(self._drawn)

    def update(self, td_error: Tensor) -> None:
        """Set the priorities of the last batch from its absolute TD errors (batch,), the largest over the critics.

        If the batch contains a transition several times, its last TD error counts.

        Raises:
            UsageError: No batch was drawn since the last update, or it has another shape.
        """
        self.synchronize()
        drawn, self._drawn = self._drawn, None
        if drawn is None or drawn.shape != tuple(td_error.shape):
            raise UsageError(
                "update must be called once after each sampled batch, with one TD error per transition, got "
                f"shape {tuple(td_error.shape)}. Use the TD errors of the last batch."
            )
        errors = td_error.detach().float().cpu().numpy()
        # np.fmax and np.fmin keep NaN and inf of a diverged run, which is about to be stopped, out of the sums.
        priorities = np.fmin(np.fmax(errors, np.float32(MIN_PRIORITY)), MAX_FLOAT32) ** np.float32(self.alpha)
        self.max_priority = max(self.max_priority, float(priorities.max()))
        present = drawn >= 0
        self._tree.set(drawn[present], priorities[present])

    def reset_max_priority(self) -> None:
        """Set the priority of new transitions to the largest one in the replay buffer.

        Otherwise, it is the largest one since the last call, whose transition may have a smaller priority now.
        """
        self.synchronize()
        self.max_priority = max(float(self._tree.values.max()), MIN_PRIORITY)

    def synchronize(self) -> None:
        """Set the priorities of transitions that the rings have added to `max_priority`, and of removed ones to 0."""
        changes = [change for env in range(len(self.rings)) if (change := self._changes(env)) is not None]
        if not changes:
            return
        gone, new = changes[0] if len(changes) == 1 else map(np.concatenate, zip(*changes, strict=True))
        if self._drawn is not None:
            self._drawn = np.where(np.isin(self._drawn, gone), -1, self._drawn)
        priorities = np.full(len(gone) + len(new), self.max_priority, np.float32)
        priorities[: len(gone)] = 0.0  # a new transition may start at the place of one that is gone
        self._tree.set(np.concatenate([gone, new]), priorities)

    def _changes(self, env: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the places of the rows that lost their transition, and of those that start a new one; None if none."""
        ring, index = self.rings[env], self.rings[env].index
        before = self._known[env]
        now = (index.first if index.count else ring.valid_rows.stop, index.oldest + index.count)
        if now == before:
            return None
        self._known[env] = now
        gone = np.arange(max(before[0], now[0] - ring.length), now[0])
        return self._places(env, gone), self._starts(env, max(before[1] - index.oldest, 0))

    def _starts(self, env: int, skipped: int = 0) -> NDArray[np.int64]:
        """Return the places of the rows of a ring that start a transition, oldest first, without the first ones."""
        places = self.rings[env].index.places[skipped:]
        return self._places(env, self.rings[env].index.rows(np.arange(places.start, places.stop)))

    def _places(self, env: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of rows (n,) of a ring, given their numbers, in the array of all rings."""
        ring = self.rings[env]
        return rows % ring.length + env * len(ring.rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the largest priority, and the priorities (transitions,) of each ring, oldest first."""
        self.synchronize()
        values = [torch.from_numpy(self._tree.values[self._starts(env)]) for env in range(len(self.rings))]
        return {"largest": self.max_priority, "alpha": self.alpha, "rings": values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict` after the rings; an empty state, or one with another `alpha`, gives all
        transitions the same priority.
        """
        self._clear()
        self.max_priority = MIN_PRIORITY
        self.synchronize()
        if state.get("alpha") != self.alpha:
            return
        self.max_priority = state["largest"]
        for env, values in enumerate(state["rings"]):
            self._tree.set(self._starts(env), values.numpy())


class SumTree:
    """Hold non-negative numbers, all 0 at first, and find the one that contains a point of their running sum.

    A sum is always computed from all of its children, in float64 and in their order. So it depends only on the
    numbers, not on earlier changes, and rounding errors do not accumulate.
    """

    def __init__(self, size: int) -> None:
        blocks = -(-size // FANOUT)
        self.levels: list[NDArray[Any]] = [np.zeros((blocks, FANOUT), np.float32)]
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
        points = np.minimum(shares[order] * roots[-1], np.nextafter(roots[-1], 0.0))
        places: NDArray[np.int64] = roots.searchsorted(points, side="right")
        before = roots.take(places - 1) * (places > 0)
        for depth in range(len(self.levels) - 2, -1, -1):
            is_leaf = depth == 0
            sums = _running_sums(self.levels[0], places) if is_leaf else self._running[depth - 1].take(places, axis=0)
            # Rounding may move a point to the end of its block, which belongs to no child.
            points = np.minimum(points - before, np.nextafter(sums[:, -1], 0.0))
            child = (sums > points[:, None]).argmax(1)  # the first one; there is one, because a point is below the last
            places = places * FANOUT + child
            if not is_leaf:
                before = sums.take(np.arange(-1, sums.size - 1, FANOUT) + child) * (child > 0)
        found = np.empty_like(places)
        found[order] = places
        return found


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

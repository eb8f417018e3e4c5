"""Priorities of the transitions for loss-adjusted prioritized experience replay (LAP, Fujimoto et al., 2020)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.errors import UsageError
from td3_lightning.replay.ring import Ring
from td3_lightning.replay.sum_tree import SumTree

MIN_PRIORITY = 1.0  # also the threshold of the Huber loss
MAX_FLOAT32 = np.finfo(np.float32).max


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

    @property
    def itemsize(self) -> int:
        """Return the memory of one priority in bytes, without the sums, which add an eighth."""
        return self._tree.values.itemsize

    def draw(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Draw the first rows (batch,) of transitions. At least one must exist."""
        self.synchronize()
        shares = torch.rand(batch_size, generator=generator, dtype=torch.float64).numpy()
        self._drawn = self._tree.find(shares)
        return torch.from_numpy(self._drawn)

    def update(self, td_error: NDArray[np.float32]) -> None:
        """Set the priorities of the last batch from its absolute TD errors (batch,).

        If the batch contains a transition several times, its last TD error counts.

        Raises:
            UsageError: No batch was drawn since the last update, or it has another shape.
        """
        self.synchronize()
        drawn, self._drawn = self._drawn, None
        if drawn is None or drawn.shape != td_error.shape:
            expected = "after each sampled batch" if drawn is None else f"with TD errors of shape {drawn.shape}"
            got = "no new batch" if drawn is None else f"{td_error.shape}"
            raise UsageError(
                f"update_priorities must be called once {expected}, got {got}. Use the TD errors of the last batch."
            )
        # np.fmax and np.fmin keep NaN and inf of a diverged run, which is about to be stopped, out of the sums.
        priorities = np.fmin(np.fmax(td_error, np.float32(MIN_PRIORITY)), MAX_FLOAT32) ** np.float32(self.alpha)
        self.max_priority = max(self.max_priority, float(priorities.max()))
        present = drawn >= 0
        self._tree.set(drawn[present], priorities[present])

    def reset_max_priority(self) -> None:
        """Set the priority of new transitions to the largest one in the replay buffer."""
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
        """Restore a state of `state_dict` after the rings; an empty state gives all transitions the same priority.

        Priorities with another `alpha` are converted.

        Raises:
            UsageError: The state has another number of priorities than there are transitions.
        """
        self._clear()
        self.max_priority = MIN_PRIORITY
        self.synchronize()
        power = self.alpha / state.get("alpha", self.alpha)  # of an older checkpoint, alpha is unknown
        self.max_priority = float(_raised(np.array(state.get("largest", MIN_PRIORITY)), power))
        for env, values in enumerate(state.get("rings", [])):
            starts = self._starts(env)
            if len(values) != len(starts):
                raise UsageError(
                    f"The saved replay must have {len(starts)} priorities, got {len(values)}. Use another checkpoint."
                )
            self._tree.set(starts, _raised(values.numpy(), power))


def _raised(priorities: NDArray[Any], power: float) -> NDArray[Any]:
    """Raise priorities to a power, at most to the largest float32 number."""
    if power == 1:
        return priorities
    with np.errstate(over="ignore"):
        return np.fmin(priorities.astype(np.float64) ** power, MAX_FLOAT32).astype(np.float32)


def require(priorities: Priorities | None) -> Priorities:
    """Return the priorities, or raise `UsageError` if the replay buffer samples uniformly."""
    if priorities is None:
        raise UsageError(
            "priority_alpha must be greater than 0 for priorities, got 0. Use 0.4, for example, or omit the call."
        )
    return priorities

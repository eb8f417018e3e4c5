"""Ring buffer of packed float32 rows of one environment."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.errors import UsageError

Rows = NDArray[np.float32]


class TransitionIndex:
    """Map the numbers of transitions to the numbers of the rows at which they start.

    Rows and transitions are numbered from 0 since the start of the run. Nearly every row starts a transition, but the
    last observation of an episode does not. So a transition's row is its own number plus an offset, which is the number
    of skipped rows.

    Args:
        offsets: Memory for the offsets, one for each transition, (n,) uint32.
    """

    def __init__(self, offsets: NDArray[np.uint32]) -> None:
        self.offsets = offsets
        self.oldest = 0  # number of the oldest transition
        self.count = 0

    @property
    def places(self) -> range:
        """Return the positions of the offsets, oldest first. Positions past the end wrap around."""
        begin = self.oldest % len(self.offsets)
        return range(begin, begin + self.count)

    @property
    def first(self) -> int:
        """Return the row of the oldest transition."""
        return self.oldest + int(self.offsets[self.oldest % len(self.offsets)])

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows (n,) of transitions, given some of `places`, (n,)."""
        return places + self.offsets.take(places, mode="wrap") + (self.oldest - self.places.start)

    def append(self, row: int) -> None:
        """Append a transition that starts at a later row than the previous one."""
        number = self.oldest + self.count
        self.offsets[number % len(self.offsets)] = row - number
        self.count += 1

    def drop(self) -> None:
        """Remove the oldest transition."""
        self.oldest, self.count = self.oldest + 1, self.count - 1

    def replace(self, rows: NDArray[np.int64]) -> None:
        """Replace all transitions by those that start at the rows (count,). The first row is also its number."""
        self.oldest, self.count = int(rows[0]) if len(rows) else 0, len(rows)
        numbers = np.arange(self.oldest, self.oldest + self.count)
        self.offsets[numbers % len(self.offsets)] = rows - numbers


RUNNING, TERMINATED, TRUNCATED = 0.0, 1.0, 2.0  # last value of a row: how its step ended


class Ring:
    """Store the newest rows of one environment, and index its complete transitions.

    A row holds an observation, the action taken there, the reward and how the step ended. The next observation is part
    of the next row, so it is stored once. The last observation of an episode has its own row. The first `n_step` rows
    are repeated after the last row, so that a row and the `n_step` rows after it are contiguous.

    Args:
        rows: Memory for the rows, (ring + n_step, obs_dim + action_dim + 2).
        index: Index of the rows at which complete transitions start.
        obs_dim: Size of an observation.
        n_step: Number of summed rewards.
        history: Number of rows before a transition that are read with it.
    """

    def __init__(self, rows: Rows, index: TransitionIndex, obs_dim: int, n_step: int, history: int = 0) -> None:
        self.rows, self.index, self.obs_dim, self.n_step, self.history = rows, index, obs_dim, n_step, history
        self.length = len(rows) - n_step
        self.written = 0  # complete rows since the start of the run; a new row overwrites the oldest
        self.pending = 0  # steps of the running episode whose n-step sum is incomplete
        self.running = False  # the row at the cursor holds an observation without an action

    @property
    def cursor(self) -> int:
        """Return the position of the next row."""
        return self.written % self.length

    @property
    def valid_rows(self) -> range:
        """Return the numbers of the stored rows. The last one may have no action yet."""
        end = self.written + self.running
        return range(max(end - self.length, 0), end)

    @property
    def immutable_rows(self) -> int:
        """Return the number below which rows are final. A running episode may still end at its last step."""
        return self.written - self.running

    @property
    def row_bytes(self) -> int:
        """Return the size of a row in bytes."""
        return int(self.rows[0].nbytes)

    def parts(self, numbers: range) -> list[Rows]:
        """Return two views (n, row) of consecutive rows: up to the end of the ring, and from its beginning."""
        first = numbers.start % self.length
        stop = first + len(numbers)
        return [self.rows[first : min(stop, self.length)], self.rows[: max(stop - self.length, 0)]]

    def copy(self, numbers: range) -> Tensor:
        """Return a copy of the rows (n, row) with these numbers."""
        return torch.from_numpy(np.concatenate(self.parts(numbers)))

    def continues(self, obs: Rows) -> bool:
        """Return whether an observation is the last one of the running episode; True if none is running."""
        if not self.running:
            return True
        last = self.rows[self.cursor, : self.obs_dim]
        return last.tobytes() == obs.tobytes() or np.array_equal(last, obs)  # frames as float32 may contain NaN

    def add(self, obs: Rows, action: Rows, reward: float, end: float, next_obs: Rows) -> None:
        """Store a step, and index the transitions that it completes: all pending ones if the episode ends."""
        last = self.written
        self._write(obs, action, reward, end)
        self._write(next_obs, 0.0, 0.0, RUNNING)
        self.running = end == RUNNING
        if self.running:
            self.written -= 1  # the next action completes this row
        self.pending += 1
        self._finish(last, self.pending // self.n_step if self.running else self.pending)

    def truncate_episode(self) -> None:
        """Truncate the running episode, if any, at its last step."""
        if self.running:
            self.rows[(self.cursor - 1) % self.length, -1] = TRUNCATED
            self.rows[self.length :] = self.rows[: self.n_step]
            self._finish(self.written - 1, self.pending)
            self.written += 1  # the row at the cursor becomes the episode's last observation
            self.running = False

    def _finish(self, last: int, transitions: int) -> None:
        """Index the oldest pending transitions."""
        for _ in range(transitions):
            self.pending -= 1
            self.index.append(last - self.pending)

    def _write(self, obs: Rows, action: Rows | float, reward: float, end: float) -> None:
        """Overwrite the row at the cursor, and drop the transitions that used it."""
        slot, index = self.cursor, self.index
        while index.count and index.first - self.history <= self.written - self.length:
            index.drop()
        for row in (slot, self.length + slot) if slot < self.n_step else (slot,):
            self.rows[row, : self.obs_dim] = obs
            self.rows[row, self.obs_dim : -2] = action
            self.rows[row, -2:] = reward, end
        self.written += 1

    def position(self) -> dict[str, int]:
        """Return the state without the rows, as plain numbers."""
        counts = {"written": self.written, "running": int(self.running), "pending": self.pending}
        return counts | {"transitions": self.index.count}

    def state_dict(self) -> dict[str, Any]:
        """Return the state. `rows` is a list of pairs: the number of the first row, and the rows."""
        return {**self.position(), "rows": [(self.valid_rows.start, self.copy(self.valid_rows))]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`; raise `UsageError` if rows are missing."""
        end = state["written"] + state["running"]
        missing = range(max(end - self.length, 0), end)
        for first, rows in state["rows"]:
            old = max(missing.start - first, 0)  # rows that were overwritten later
            rows = rows[old : old + len(missing)].numpy()
            if len(rows) and first + old == missing.start:
                before_end, after_start = self.parts(missing[: len(rows)])
                before_end[:], after_start[:] = rows[: len(before_end)], rows[len(before_end) :]
                missing = missing[len(rows) :]
        if missing:
            raise UsageError(
                f"The saved replay buffer must hold the rows {missing.start} to {missing.stop - 1}, got none of them. "
                "Use another checkpoint."
            )
        self.rows[self.length :] = self.rows[: self.n_step]
        self.written, self.running, self.pending = state["written"], bool(state["running"]), state["pending"]
        self._rebuild_index(state["transitions"])

    def _rebuild_index(self, transitions: int) -> None:
        """Index every row that starts a transition: all except pending rows and last observations of episodes."""
        numbers = np.arange(self.valid_rows.start, self.written - self.pending)
        follows_end = self.rows[(numbers - 1) % self.length, -1] != RUNNING
        # The oldest row may be a last observation whose step was overwritten. Only `transitions` shows it.
        starts = numbers[~follows_end | (numbers == self.valid_rows.start)]
        self.index.replace(starts[len(starts) - transitions :])

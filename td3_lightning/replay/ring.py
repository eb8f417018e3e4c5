"""Ring buffer of packed float32 rows of one environment."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.errors import UsageError

SHIFT = 12


BLOCK = 1 << SHIFT  # transitions that count from the same row


MOST = 2**16 - 1 - BLOCK  # rows passed over before a block that its transitions can count from the very first


class TransitionIndex:
    """The rows that transitions start at, the oldest first, by the numbers that count all rows ever written.

    Nearly every row starts a transition, but an episode's last observation does not. So a transition's row is its own
    number, which follows that of the one before it, plus the rows passed over so far. Two bytes hold those, or, once
    they are too many, those since the beginning of its block.

    Args:
        passed: Memory for the two bytes, (n,) uint16, n as `memory_for` says.
        before: Memory for what each block counts from, (n / BLOCK,) int64.
    """

    def __init__(self, passed: NDArray[np.uint16], before: NDArray[np.int64]) -> None:
        self.passed, self.before = passed, before
        self.oldest = 0  # the number of the oldest transition
        self.count = 0
        self.are_many = False  # whether a block counts from later than the very first row

    @staticmethod
    def memory_for(transitions: int) -> int:
        """A length of `passed` at which a block that begins anew holds none of so many transitions."""
        return (transitions // BLOCK + 2) * BLOCK

    @property
    def places(self) -> range:
        """Where the transitions' bytes stand, the oldest's first; some of them may be counted on past the end."""
        begin = self.oldest % len(self.passed)
        return range(begin, begin + self.count)

    @property
    def first(self) -> int:
        """The row of the oldest transition."""
        place = self.oldest % len(self.passed)
        return self.oldest + int(self.before[place >> SHIFT]) + int(self.passed[place])

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows (n,) of transitions, given some of `places`, (n,)."""
        rows: NDArray[np.int64] = places + self.passed.take(places, mode="wrap")
        if self.are_many:
            rows += self.before.take(places >> SHIFT, mode="wrap")
        if self.oldest >= len(self.passed):
            rows += self.oldest - self.places.start
        return rows

    def append(self, row: int) -> None:
        """Adds a transition that starts after the last one did."""
        number = self.oldest + self.count
        place, passed = number % len(self.passed), row - number
        if place % BLOCK == 0:
            self._begin_block(place >> SHIFT, passed)
        self.passed[place] = passed - int(self.before[place >> SHIFT])
        self.count += 1

    def drop(self) -> None:
        """Forgets the oldest one."""
        self.oldest, self.count = self.oldest + 1, self.count - 1

    def replace(self, rows: NDArray[np.int64]) -> None:
        """Lists these rows (count,), and no others; the first one is its transition's number."""
        self.oldest, self.count, self.are_many = int(rows[0]) if len(rows) else 0, len(rows), False
        numbers = np.arange(self.oldest, self.oldest + self.count)
        places, passed = numbers % len(self.passed), rows - numbers
        for first in np.flatnonzero((places % BLOCK == 0) | (numbers == self.oldest)):
            self._begin_block(places[first] >> SHIFT, int(passed[first]))
        self.passed[places] = passed - self.before[places >> SHIFT]

    def _begin_block(self, block: int, passed: int) -> None:
        self.before[block] = passed if passed > MOST else 0
        self.are_many = self.are_many or passed > MOST


RUNNING, TERMINATED, TRUNCATED = 0.0, 1.0, 2.0  # a row's last number: how its step ended


class Ring:
    """The newest rows of one environment, and where the finished transitions among them start.

    A row is an observation, the action taken there, its reward and how the step ended. The next
    observation is the next row's, so it is stored once; an episode's last observation has a row of
    its own. The first rows stand again behind the seam, so that `n_step` rows and the next are one contiguous read.

    Args:
        rows: Memory for the rows, (ring + n_step, obs_dim + action_dim + 2).
        starts: Gets the rows at which finished transitions start.
        obs_dim: Numbers in an observation.
        n_step: Rewards in a sum.
        history: Rows before a transition's first that are read with it, and so must still be there.
    """

    def __init__(
        self,
        rows: NDArray[np.float32],
        starts: TransitionIndex,
        obs_dim: int,
        n_step: int,
        history: int = 0,
    ) -> None:
        self.rows, self.starts, self.obs_dim, self.n_step, self.history = rows, starts, obs_dim, n_step, history
        self.length = len(rows) - n_step
        self.written = 0  # rows completed ever; their numbers count up from 0, and a new one takes the oldest's place
        self.pending = 0  # steps of the running episode whose sum of rewards is not complete
        self.running = False  # the row at the cursor holds an observation that waits for its action

    @property
    def cursor(self) -> int:
        """Where the next row is written."""
        return self.written % self.length

    @property
    def valid_rows(self) -> range:
        """The numbers of the rows that are there; the last one may wait for its action."""
        end = self.written + self.running
        return range(max(end - self.length, 0), end)

    @property
    def immutable_rows(self) -> int:
        """The rows below this number never change; of a running episode, the last step may still become its end."""
        return self.written - self.running

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return int(self.rows[0].nbytes)

    def parts(self, numbers: range) -> list[NDArray[np.float32]]:
        """The memory of consecutive rows, before and behind the seam: two parts (n, row), which may be empty."""
        first = numbers.start % self.length
        stop = first + len(numbers)
        return [self.rows[first : min(stop, self.length)], self.rows[: max(stop - self.length, 0)]]

    def copy(self, numbers: range) -> Tensor:
        """The rows (n, row) of these numbers."""
        return torch.from_numpy(np.concatenate(self.parts(numbers)))

    def add(
        self,
        obs: NDArray[np.float32],
        action: NDArray[np.float32],
        reward: float,
        end: float,
        next_obs: NDArray[np.float32],
    ) -> None:
        """Stores a step, then lists the transitions that it finishes: all that are pending if it is the last."""
        last = self.written
        self._write(obs, action, reward, end)
        self._write(next_obs, 0.0, 0.0, RUNNING)
        self.running = end == RUNNING
        if self.running:
            self.written -= 1  # the next action completes this row
        self.pending += 1
        self._finish(last, self.pending // self.n_step if self.running else self.pending)

    def truncate_episode(self) -> None:
        """Ends the running episode, if there is one, at its last step."""
        if self.running:
            self.rows[(self.cursor - 1) % self.length, -1] = TRUNCATED
            self.rows[self.length :] = self.rows[: self.n_step]
            self._finish(self.written - 1, self.pending)
            self.written += 1  # the open row is the episode's last observation
            self.running = False

    def _finish(self, last: int, transitions: int) -> None:
        """Lists the oldest pending transitions, now that the row of the last step is there."""
        for _ in range(transitions):
            self.pending -= 1
            self.starts.append(last - self.pending)

    def _write(self, obs: NDArray[np.float32], action: NDArray[np.float32] | float, reward: float, end: float) -> None:
        """Puts a row at the cursor, in place of the oldest."""
        slot, starts = self.cursor, self.starts
        while starts.count and starts.first - self.history <= self.written - self.length:
            starts.drop()
        for row in (slot, self.length + slot) if slot < self.n_step else (slot,):
            self.rows[row, : self.obs_dim] = obs
            self.rows[row, self.obs_dim : -2] = action
            self.rows[row, -2:] = reward, end
        self.written += 1

    def position(self) -> dict[str, int]:
        """All that changes but the rows, as plain numbers."""
        return {
            "written": self.written,
            "running": int(self.running),
            "pending": self.pending,
            "transitions": self.starts.count,
        }

    def state_dict(self) -> dict[str, Any]:
        """All that changes; `rows` lists the first number and the rows of each of its parts, here of one."""
        return {**self.position(), "rows": [(self.valid_rows.start, self.copy(self.valid_rows))]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what `state_dict` gave; raises `UsageError` if rows are missing."""
        end = state["written"] + state["running"]
        wanted = range(max(end - self.length, 0), end)
        for first, rows in state["rows"]:
            old = max(wanted.start - first, 0)  # rows that have been written over since
            rows = rows[old : old + len(wanted)]
            if len(rows) and first + old == wanted.start:
                self._put(wanted.start, rows.numpy())
                wanted = wanted[len(rows) :]
        if wanted:
            raise UsageError(
                f"The saved replay is without its rows from {wanted.start} on; go on from another checkpoint."
            )
        self.rows[self.length :] = self.rows[: self.n_step]
        self.written, self.running, self.pending = state["written"], bool(state["running"]), state["pending"]
        self._list_starts(state["transitions"])

    def _put(self, first: int, rows: NDArray[np.float32]) -> None:
        before, behind = self.parts(range(first, first + len(rows)))
        before[:], behind[:] = rows[: len(before)], rows[len(before) :]

    def _list_starts(self, transitions: int) -> None:
        """Finds them in the rows: every row is one, but for the pending ones and the episodes' last observations."""
        numbers = np.arange(self.valid_rows.start, self.written - self.pending)
        follows_end = self.rows[(numbers - 1) % self.length, -1] != RUNNING
        # The oldest may be a last observation whose step is gone, which only the count tells.
        starts = numbers[~follows_end | (numbers == self.valid_rows.start)]
        if transitions > len(starts):
            raise UsageError(
                f"The saved replay must have at most {len(starts)} transitions, got {transitions}. Use another "
                "checkpoint."
            )
        self.starts.replace(starts[len(starts) - transitions :])

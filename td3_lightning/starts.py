"""Where the finished transitions of an environment start, in a byte each."""

import numpy as np
from numpy.typing import NDArray

SHIFT = 8
BLOCK = 1 << SHIFT  # transitions that count from the same row; no more of them than a byte can tell apart


class Starts:
    """The rows that transitions start at, the oldest first, by the numbers that count all rows ever written.

    Nearly every row starts a transition, but an episode's last observation does not. A transition's row is then its own
    number, counted from 0 on as well, plus the rows passed over before it: those before its block, and in a byte those
    since the block's first transition.

    Args:
        passed: Memory for the bytes, (n,) uint8, n as `memory_for` says.
        before: Memory for what each block counts from, (n / BLOCK,) int64.
    """

    def __init__(self, passed: NDArray[np.uint8], before: NDArray[np.int64]) -> None:
        self.passed, self.before = passed, before
        self.oldest = 0  # the number of the oldest transition
        self.count = 0

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
        return self.oldest + int(self.before[place // BLOCK]) + int(self.passed[place])

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows (n,) of transitions, given some of `places`, (n,)."""
        rows: NDArray[np.int64] = self.before.take(places >> SHIFT, mode="wrap")
        rows += places
        rows += self.passed.take(places, mode="wrap")
        if self.oldest >= len(self.passed):
            rows += self.oldest - self.places.start
        return rows

    def append(self, row: int) -> None:
        """Adds a transition that starts after the last one did."""
        number = self.oldest + self.count
        place, passed = number % len(self.passed), row - number
        if place % BLOCK == 0:
            self.before[place // BLOCK] = passed
        self.passed[place] = passed - int(self.before[place // BLOCK])
        self.count += 1

    def drop(self) -> None:
        """Forgets the oldest one."""
        self.oldest, self.count = self.oldest + 1, self.count - 1

    def replace(self, rows: NDArray[np.int64]) -> None:
        """Lists these rows (count,), and no others."""
        self.oldest, self.count = 0, len(rows)
        passed = rows - np.arange(len(rows))
        self.before[: len(passed[::BLOCK])] = passed[::BLOCK]
        self.passed[: len(rows)] = passed - passed[::BLOCK].repeat(BLOCK)[: len(rows)]

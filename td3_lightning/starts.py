"""Where the finished transitions of an environment start, in two bytes each."""

import numpy as np
from numpy.typing import NDArray

SHIFT = 12
BLOCK = 1 << SHIFT  # transitions that count from the same row
MOST = 2**16 - 1 - BLOCK  # rows passed over before a block that its transitions can count from the very first


class Starts:
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

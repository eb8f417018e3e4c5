"""Transition index against a plain list."""

from collections import deque
from typing import Any

import numpy as np
import pytest

from td3_lightning.replay.ring import BLOCK, TransitionIndex

HELD = 2 * BLOCK + 17


def new_starts(held: int = HELD) -> TransitionIndex:
    length = TransitionIndex.memory_for(held)
    garbage = np.full(length, 99, np.uint16)  # the memory need not be zero
    return TransitionIndex(garbage, np.full(length // BLOCK, -7))


def check(starts: TransitionIndex, expected: list[int]) -> None:
    assert starts.count == len(expected)
    places = np.array(starts.places, np.int64)
    np.testing.assert_array_equal(starts.rows(places), expected)
    if expected:
        assert starts.first == expected[0]
        np.testing.assert_array_equal(starts.rows(places[[-1, 0, 0]]), [expected[-1], expected[0], expected[0]])


@pytest.mark.parametrize("passes", [0.0, 0.01, 0.5, 1.0])
def test_index_matches_a_list(passes: float, rng: Any) -> None:
    """The index is mostly full and wraps around several times; at most every second row is skipped."""
    starts, expected, row = new_starts(), deque[int](), 5
    for added in range(12 * HELD):
        starts.append(row)
        expected.append(row)
        row += 2 if rng.random() < passes else 1
        while len(expected) > HELD or (added == 2 * HELD and expected):
            starts.drop()
            expected.popleft()
        if rng.random() < 0.01:
            check(starts, list(expected))
    check(starts, list(expected))
    assert starts.has_block_offsets == (passes == 1.0)


@pytest.mark.parametrize("passes", [0.5, 1.0])
@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, HELD, 80_000])
def test_index_continues_after_replace(count: int, passes: float, rng: Any) -> None:
    rows = 10**9 + np.arange(count) + (rng.random(count) < passes).cumsum()
    starts, expected = new_starts(80_000), deque(rows.tolist())
    for row in range(300):
        starts.append(row)
    starts.has_block_offsets = True
    starts.replace(rows)
    check(starts, rows.tolist())
    assert starts.has_block_offsets == (count == 80_000 and passes == 1.0)
    following = (expected or [7])[-1] + 2
    for row in range(following, following + 90_000):
        starts.append(row)
        expected.append(row)
        if len(expected) > 80_000:
            starts.drop()
            expected.popleft()
    check(starts, list(expected))

"""Transition index against a plain list."""

from collections import deque
from typing import Any

import numpy as np
import pytest

from td3_lightning.replay.ring import TransitionIndex

HELD = 400


def new_starts() -> TransitionIndex:
    return TransitionIndex(np.full(HELD, 99, np.uint32))  # the memory need not be zero


def check(starts: TransitionIndex, expected: list[int]) -> None:
    assert starts.count == len(expected)
    places = np.array(starts.places, np.int64)
    np.testing.assert_array_equal(starts.rows(places), expected)
    if expected:
        assert starts.first == expected[0]
        np.testing.assert_array_equal(starts.rows(places[[-1, 0, 0]]), [expected[-1], expected[0], expected[0]])


@pytest.mark.parametrize("count", [0, 1, HELD])
@pytest.mark.parametrize("passes", [0.0, 0.5, 1.0])
def test_index_matches_a_list(passes: float, count: int, rng: Any) -> None:
    """The index is full, wraps around several times, and continues after a load."""
    rows = 10**9 + np.arange(count) + (rng.random(count) < passes).cumsum()
    starts, expected = new_starts(), deque(rows.tolist())
    starts.append(3)
    starts.replace(rows)
    check(starts, rows.tolist())
    row = (expected or [7])[-1] + 2
    for _ in range(12 * HELD):
        if len(expected) == HELD:
            starts.drop()
            expected.popleft()
        starts.append(row)
        expected.append(row)
        row += 2 if rng.random() < passes else 1
        if rng.random() < 0.01:
            check(starts, list(expected))
    check(starts, list(expected))

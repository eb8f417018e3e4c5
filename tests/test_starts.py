"""The list of starts against a plain list."""

from typing import Any

import numpy as np
import pytest

from td3_lightning.starts import BLOCK, Starts

HELD = 3 * BLOCK + 17


def new_starts() -> Starts:
    length = Starts.memory_for(HELD)
    garbage = np.full(length, 99, np.uint8)  # it is not asked to be zeros
    return Starts(garbage, np.full(length // BLOCK, -7))


def check(starts: Starts, expected: list[int]) -> None:
    assert starts.count == len(expected)
    places = np.array(starts.places, np.int64)
    np.testing.assert_array_equal(starts.rows(places), expected)
    if expected:
        assert starts.first == expected[0]
        np.testing.assert_array_equal(starts.rows(places[[-1, 0, 0]]), [expected[-1], expected[0], expected[0]])


@pytest.mark.parametrize("passes", [0.0, 0.01, 0.5, 1.0])
def test_starts_are_those_of_a_plain_list(passes: float, rng: Any) -> None:
    """Full all the time, and over its memory several times; at worst every second row is passed over."""
    starts, expected, row = new_starts(), list[int](), 5
    for _ in range(6 * HELD):
        starts.append(row)
        expected.append(row)
        row += 2 if rng.random() < passes else 1
        if len(expected) > rng.integers(HELD - 5, HELD + 1):
            starts.drop()
            expected.pop(0)
        if rng.random() < 0.02:
            check(starts, expected)
    check(starts, expected)


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, HELD])
def test_starts_that_are_replaced_go_on(count: int, rng: Any) -> None:
    rows = 10**9 + np.arange(2 * HELD)[:count] + rng.integers(2, size=count).cumsum()
    starts, expected = new_starts(), rows.tolist()
    for row in range(300):
        starts.append(row)
    starts.replace(rows)
    check(starts, expected)
    following = (expected or [7])[-1] + 2
    for row in range(following, following + 2 * HELD):
        starts.append(row)
        expected.append(row)
        if len(expected) > HELD:
            starts.drop()
            expected.pop(0)
    check(starts, expected)

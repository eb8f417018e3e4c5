"""Check which values a checkpoint may hold."""

from typing import Any

import pytest

from td3_lightning.serialization.values import DEPTH, InvalidValueError, check_nesting, plain, scalar


def nested(value: Any, levels: int) -> Any:
    """Return a value in lists."""
    for _ in range(levels):
        value = [value]
    return value


def cycle() -> list[Any]:
    """Return a list that contains itself."""
    value: list[Any] = []
    value.append(value)
    return value


SHARED = nested(1, DEPTH - 2)
DEEP = f"it must be nested at most {DEPTH} levels deep"
KEY = "a key of it must be a string or a number"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (nested(1, DEPTH + 2), DEEP),
        ([SHARED, nested(SHARED, 5)], DEEP),  # a shared value is visited once
        (cycle(), DEEP),
        ({"a": object()}, "it must be made of tensors, numbers, strings, lists and mappings"),
        ({(1, 2): 3}, KEY),
    ],
    ids=["deep", "deep and shared", "a cycle", "an object", "a tuple as a key"],
)
def test_checkpoint_holds_plain_values_of_limited_depth(value: Any, expected: str) -> None:
    with pytest.raises(InvalidValueError, match=expected):
        check_nesting(value, "it")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (nested(1, DEPTH + 2), f"must be at most {DEPTH} levels deep"),
        (cycle(), f"must be at most {DEPTH} levels deep"),
        ({"a": object()}, "must be made of numbers, strings, lists and mappings"),
        ({float("nan"): 1}, KEY),
        ({(1, 2): 3}, KEY),
        ({2**5000: 3}, "a key of it must be an integer of at most"),
    ],
    ids=["deep", "a cycle", "an object", "NaN as a key", "a tuple as a key", "a huge key"],
)
def test_settings_hold_plain_values_of_limited_depth(value: Any, expected: str) -> None:
    with pytest.raises(InvalidValueError, match=expected):
        plain(value, "it")


def test_huge_integer_is_no_number() -> None:
    with pytest.raises(InvalidValueError, match=r"^it must be a number, got an integer of \d+ bits$"):
        scalar(2**2000, "it")

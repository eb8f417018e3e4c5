"""Columns of `metrics.csv`: how a metric's name and value become a cell."""

import math
from collections.abc import Collection, Mapping
from typing import Any

MOST_COLUMNS = 500  # of one file; an environment whose info has new names in every episode would add columns for ever


def admitted(metrics: Mapping[str, Any], columns: Collection[str]) -> tuple[dict[str, float], list[str]]:
    """Convert the metrics that a file has a column for, or room for one.

    Args:
        metrics: Names and numbers.
        columns: The columns that the file has.

    Returns:
        The names and numbers to write, and the names for which there is no room.
    """
    values: dict[str, float] = {}
    left_out: list[str] = []
    room = MOST_COLUMNS - len(columns)
    for name, value in metrics.items():
        column = column_of(name)
        if column not in columns and column not in values:
            if room <= 0:
                left_out.append(column)
                continue
            room -= 1
        values[column] = as_float(value)
    return values, left_out


def column_of(name: object) -> str:
    """Make a metric's name one line of text that UTF-8 can encode."""
    return " ".join(str(name).split()).encode("utf-8", "replace").decode("utf-8")


def as_float(value: Any) -> float:
    """Convert a number. An integer beyond the range of float becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf

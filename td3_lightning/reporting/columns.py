"""Convert the names and values of metrics to columns and cells of `metrics.csv`."""

from collections.abc import Collection, Mapping
from typing import Any

from td3_lightning.errors import to_float

MAX_COLUMNS = 500  # An environment that reports new names in every episode would add columns without end.


def select_columns(metrics: Mapping[str, Any], columns: Collection[str]) -> tuple[dict[str, float], list[str]]:
    """Convert the metrics that fit into the columns of a file.

    Args:
        metrics: Names and values of the metrics.
        columns: Columns that the file has.

    Returns:
        The columns and values to write, and the columns that exceed the limit.
    """
    values: dict[str, float] = {}
    excess: list[str] = []
    room = MAX_COLUMNS - len(columns)
    for name, value in metrics.items():
        column = column_of(name)
        if column not in columns and column not in values:
            if room <= 0:
                excess.append(column)
                continue
            room -= 1
        values[column] = to_float(value)
    return values, excess


def column_of(name: object) -> str:
    """Convert the name of a metric to one line of text that UTF-8 can encode."""
    return " ".join(str(name).split()).encode("utf-8", "replace").decode("utf-8")

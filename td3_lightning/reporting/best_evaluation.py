"""Best evaluation of a run, read from its `metrics.csv`."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from td3_lightning.reporting.metrics_csv import CLOCKS, axis_of, read_axis, read_metrics

PREFIX, RETURN = "eval/", "eval/return_mean"
MAX_SHOWN = 8  # numbers besides the return; an environment may report hundreds
SPREAD = ("return_std", "return_min", "return_max")  # of the returns of several episodes


class BestEvaluation(NamedTuple):
    """Numbers of an evaluation by their names without "eval/", and the clock at which it took place."""

    clock: int
    numbers: dict[str, float]
    axis: str = CLOCKS[0]  # name of the clock

    def describe(self, episodes: int) -> str:
        """Describe the evaluation in one line. The mean return comes first, and other means follow.

        Args:
            episodes: Number of episodes. The standard deviation of one episode is left out.
        """
        std = self.numbers.get("return_std")
        spread = f" ± {std:,.2f}" if episodes > 1 and std is not None else ""
        first = f"return {self.numbers['return_mean']:,.2f}{spread} at {self.clock:,} {self.axis}"
        others = [name for name in self.numbers if name not in ("return_mean", *SPREAD)][:MAX_SHOWN]
        return ", ".join([first, *(f"{name.removesuffix('_mean')} {_short(self.numbers[name])}" for name in others)])


def read_best(metrics: Path, monitor: str = RETURN, mode: str = "max") -> BestEvaluation | None:
    """Read the first evaluation with the best value of a metric. Return None if no evaluation was logged.

    Args:
        metrics: Path of a `metrics.csv`.
        monitor: Metric to compare. The mean return is compared if the file does not contain it.
        mode: "max" or "min".
    """
    columns = _eval_columns(metrics)
    if RETURN not in columns:
        return None
    if monitor not in columns:
        monitor, mode = RETURN, "max"
    points = read_metrics(metrics, columns)
    steps, values = points[monitor][np.isfinite(points[monitor]).all(axis=1)].T
    if not len(values):
        return None
    clock = steps[values.argmax() if mode == "max" else values.argmin()]
    rows = {name: series[series[:, 0] == clock] for name, series in points.items()}
    numbers = {name.removeprefix(PREFIX): float(row[-1, 1]) for name, row in rows.items() if len(row)}
    axis = read_axis(metrics) or CLOCKS[0]
    return BestEvaluation(int(clock), numbers, axis) if "return_mean" in numbers else None


def _eval_columns(metrics: Path) -> Sequence[str]:
    try:
        with metrics.open(encoding="utf-8", newline="") as file:
            header = next(csv.reader(file), [])
    except FileNotFoundError:
        return []
    return [name for name in header if name.startswith(PREFIX)] if axis_of(header) else []


def _short(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.2f}"

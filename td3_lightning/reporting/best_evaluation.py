"""Best evaluation of a run, read from its `metrics.csv`."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from td3_lightning.reporting.metrics_csv import CLOCKS, axis_of, read_header, read_metrics

PREFIX, RETURN = "eval/", "eval/return_mean"
MAX_SHOWN = 8  # numbers besides the return; an environment may report hundreds
SPREAD = ("return_std", "return_min", "return_max")  # of the returns of several episodes


class BestEvaluation(NamedTuple):
    """Numbers of an evaluation by their names without "eval/", and the clock at which it took place."""

    clock: int
    numbers: dict[str, float]
    axis: str = CLOCKS[0]  # name of the clock

    def describe(self) -> str:
        """Describe the evaluation in one line. The mean return comes first, and other means follow.

        The standard deviation is left out if all returns are equal, such as that of one episode.
        """
        spread = f" ± {std:,.2f}" if (std := self.numbers.get("return_std")) else ""
        first = f"return {self.numbers['return_mean']:,.2f}{spread} at {self.clock:,} {self.axis}"
        others = [name for name in self.numbers if name not in ("return_mean", *SPREAD)][:MAX_SHOWN]
        shown = {"length_mean": "length"}  # the others may be names of the environment's info
        return ", ".join([first, *(f"{shown.get(name, name)} {short(self.numbers[name])}" for name in others)])


def read_best(
    metrics: Path, monitor: str = RETURN, mode: str = "max", score: float | None = None
) -> BestEvaluation | None:
    """Read the first evaluation with the best value of a metric. Return None if no evaluation was logged.

    Args:
        metrics: Path of a `metrics.csv`.
        monitor: Metric to compare. The mean return is compared if the file does not contain it.
        mode: "max" or "min".
        score: Value of the metric at the best checkpoint, whose evaluation is read. It is not the best value of the
            file if earlier checkpoints were chosen by another metric.
    """
    header = read_header(metrics)
    columns, axis = [name for name in header if name.startswith(PREFIX)], axis_of(header)
    if RETURN not in columns or axis is None:
        return None
    if monitor not in columns:
        monitor, mode, score = RETURN, "max", None
    points = read_metrics(metrics, columns)
    steps, values = points[monitor][np.isfinite(points[monitor]).all(axis=1)].T
    if not len(values):
        return None
    at_best = np.isclose(values, np.nan if score is None else score, rtol=1e-6)  # the checkpoint holds 32 bits
    if not at_best.any():
        at_best = values == (values.max() if mode == "max" else values.min())
    clock = steps[at_best.argmax()]
    rows = {name: series[series[:, 0] == clock] for name, series in points.items()}
    numbers = {name.removeprefix(PREFIX): float(row[-1, 1]) for name, row in rows.items() if len(row)}
    return BestEvaluation(int(clock), numbers, axis) if "return_mean" in numbers else None


def short(value: float) -> str:
    """Return a number with two decimals, or without decimals if it is an integer."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"

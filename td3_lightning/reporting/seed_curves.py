"""Statistics over runs and episodes, and the learning curves of several runs with their mean and its 95% interval."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import ArrayLike, NDArray

from td3_lightning.errors import UsageError, refuse
from td3_lightning.reporting.metrics_csv import Points, axis_of, column_of, read_header, read_metrics
from td3_lightning.reporting.pictures import write_picture

COLORS = "#2f6db5", "#d95f02", "#1b9e77", "#7b5ea7", "#c2243b", "#8a6d3b", "#666666"
Z = 1.959963984540054  # 97.5% quantile of the normal distribution
STYLES = "-", "--", ":"  # of the means: each for as many groups as there are colors


def read_curves(paths: Sequence[Path], metric: str) -> list[Points]:
    """Read a metric from run folders or metrics files.

    Raises:
        UsageError: A file does not exist, or does not have the metric. Or its clock decreases.
    """
    curves = []
    for path in paths:
        file = _metrics_file(path)
        if not file.is_file():
            raise UsageError(f"A run must be a folder with metrics.csv, or such a file, got {path}. Check the path.")
        points = read_metrics(file, [metric])[metric]
        if not np.isfinite(points[:, 1]).any():
            raise refuse("metric", f"a column with values in {file}", metric, "Use another --metric.")
        if not (np.diff(points[:, 0]) >= 0).all():
            raise UsageError(f"{file} must have a clock that never decreases, got another order. Sort its rows.")
        curves.append(np.where(np.isinf(points), np.nan, points))
    return curves


def _metrics_file(run: Path) -> Path:
    return run / "metrics.csv" if run.is_dir() else run


def write_seed_curves(groups: Mapping[str, Sequence[Path]], metric: str, title: str, output: Path) -> None:
    """Draw the curves of named groups of runs as a PNG picture.

    Raises:
        UsageError: A run cannot be drawn, see `read_curves` and `draw_seed_curves`, or the runs have different clocks.
    """
    curves = {name: read_curves(paths, metric) for name, paths in groups.items()}
    clocks = {str(axis_of(read_header(_metrics_file(path)))) for paths in groups.values() for path in paths}
    if len(clocks) > 1:
        fix = "Use one picture for offline runs and one for the others."
        raise UsageError(f"runs must have the same clock, got {' and '.join(sorted(clocks))}. {fix}")
    write_picture(output, lambda: draw_seed_curves(curves, metric, title, clocks.pop()))


def draw_seed_curves(
    groups: Mapping[str, Sequence[Points]], metric: str, title: str, clock: str = "env_steps"
) -> Figure:
    """Draw the curves of each group in its own color, and their mean with its 95% interval over runs.

    Raises:
        UsageError: The runs of a group have no steps in common.
    """
    figure = Figure(figsize=(9.0, 5.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    means, bands = {}, []  # lines by their labels, and intervals
    for (name, curves), (style, color) in zip(groups.items(), cycle(product(STYLES, COLORS)), strict=False):
        for points in curves:
            axes.plot(*points.T, color=color, lw=0.8, alpha=0.35)
        steps, mean, margin = mean_curve(curves)
        if not len(steps):
            fix = "Use --group for each part of the training."
            raise UsageError(f"The runs of {name} must have {clock} in common, got none. {fix}")
        (means[f"{column_of(name)}, mean of {len(curves)}"],) = axes.plot(steps, mean, style, color=color, lw=2)
        bands.append((steps, mean - margin, mean + margin, color))
    limits = axes.get_ylim()  # of the curves, because the interval of two or three runs can be many times as wide
    for steps, low, high, color in bands:
        axes.fill_between(steps, low, high, color=color, alpha=0.2, lw=0)
    axes.set(xlabel=clock, ylabel=metric, ylim=limits)
    axes.set_title(column_of(title))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.legend(means.values(), means)  # Matplotlib leaves out a line whose own label starts with "_"
    return figure


def mean_curve(curves: Sequence[Points]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Interpolate curves at all their steps up to the end of the shortest one.

    Returns:
        The steps, the mean, and half the width of the 95% interval of the mean, each (n,). The interval of a single
        curve is NaN.
    """
    first, last = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
    steps = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    steps = steps[(steps >= first) & (steps <= last)]
    values = np.array([np.interp(steps, *curve.T) for curve in curves])
    return steps, values.mean(axis=0), half_width(values)


# Statistics.


def half_width(values: ArrayLike) -> NDArray[np.float64]:
    """Return half the width, (...), of the 95% interval (Student's t) of the mean of values (n, ...); NaN for n = 1."""
    numbers = np.asarray(values, float)
    if len(numbers) < 2:
        return np.full(numbers.shape[1:], np.nan)
    return np.asarray(t_quantile(len(numbers) - 1) * numbers.std(axis=0, ddof=1) / math.sqrt(len(numbers)))


def t_quantile(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t distribution, with an error below 0.2%.

    Source: closed forms for 1 and 2 degrees of freedom, else Abramowitz and Stegun, 26.7.5.
    """
    if freedom <= 2:
        return math.tan(0.475 * math.pi) if freedom == 1 else 0.95 * math.sqrt(2 / 0.0975)
    terms = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
    )
    return math.fsum([Z, *(term / freedom**power for power, term in enumerate(terms, start=1))])

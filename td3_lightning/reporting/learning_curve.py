"""Draw the learning curve of a run."""

from collections.abc import Mapping
from pathlib import Path

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from lightning_utilities.core.rank_zero import WarningCache
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.metrics_csv import Points, axis_of, read_header, read_metrics
from td3_lightning.reporting.pictures import write_picture

TRAINING, SPREAD = "train/return", ("eval/return_mean", "eval/return_min", "eval/return_max")
BLUE, PALE_BLUE, ORANGE = "#2f6db5", "#a9c4e4", "#d95f02"


class Curve(Callback):
    """Draw `curve.png` in the folder of the `RunLogger`: returns against the clock of the run.

    The data are read from `metrics.csv`. Nothing is drawn if the Trainer has no `RunLogger`. The command line adds this
    callback unless `trainer.callbacks` has one.
    """

    def __init__(self) -> None:
        self._warnings = WarningCache()

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draw the curve, including the evaluation that has just been logged."""
        logger = next((logger for logger in trainer.loggers if isinstance(logger, RunLogger)), None)
        if logger is None or trainer.state.fn != "fit" or trainer.sanity_checking or not logger.metrics.path.exists():
            return
        try:
            write_curve(logger.metrics.path)
        except Exception as error:  # a full disk, an edited metrics.csv or a setting of Matplotlib
            self._warnings.warn(f"Cannot write curve.png: {error}. The run continues without it.")


def write_curve(metrics: Path) -> Path:
    """Draw `curve.png` next to a `metrics.csv` and return its path. The title is the name of the run folder."""
    path = metrics.with_name("curve.png")
    name = " / ".join(metrics.absolute().parent.parts[-2:])
    series, axis = read_metrics(metrics, [TRAINING, *SPREAD]), axis_of(read_header(metrics)) or "env_steps"
    write_picture(path, lambda: draw_curve(series, name, axis))
    return path


def draw_curve(series: Mapping[str, Points], title: str, axis: str = "env_steps") -> Figure:
    """Draw points (n, 2) of training and evaluation, named as in `metrics.csv`, against `env_steps` or `updates`."""
    figure = Figure(figsize=(9.0, 5.0), dpi=120)
    # Fixed margins, because matplotlib's layout engines draw everything twice.
    axes = figure.add_axes((0.09, 0.11, 0.89, 0.75))
    training, mean, low, high = (series[name] for name in (TRAINING, *SPREAD))
    if len(training):
        steps, returns = training.T
        window, size = max(10, len(returns) // 50), 6 if len(returns) <= 1000 else 3
        axes.plot(steps, returns, ".", color=PALE_BLUE, ms=size, mew=0, alpha=0.8, label="training episode")
        label = f"mean of {window} episodes"
        axes.plot(steps, running_mean(returns, window), color=BLUE, lw=1.6, label=label)
    if len(mean):
        steps, returns = mean.T
        axes.fill_between(steps, low[:, 1], high[:, 1], color=ORANGE, alpha=0.18, lw=0, label="evaluation, min to max")
        best, marker = int(returns.argmax()), "o" if len(steps) <= 60 else ""
        label = f"evaluation, mean (best {returns[best]:,.1f} at {steps[best]:,.0f})"
        axes.plot(steps, returns, marker=marker, color=ORANGE, lw=1.8, ms=3.5, label=label)
    _fit_y_limits(axes, training[:, 1], np.concatenate([low[:, 1], high[:, 1]]))
    _style(axes, title, axis)
    return figure


def _fit_y_limits(axes: Axes, training: NDArray[np.float64], evaluation: NDArray[np.float64]) -> None:
    """Fit the y axis to all evaluations and 98% of the training episodes, because outliers would flatten it."""
    shown = np.concatenate([np.percentile(training, [1, 99]) if len(training) else training, evaluation])
    if len(shown):
        margin = 0.05 * (shown.max() - shown.min()) or 1.0
        axes.set_ylim(shown.min() - margin, shown.max() + margin)


def _style(axes: Axes, title: str, axis: str) -> None:
    axes.set_title(title, loc="left", weight="bold", pad=26)
    axes.set(xlabel=axis, ylabel="episode return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        narrow = {"columnspacing": 1.2, "handlelength": 1.4, "handletextpad": 0.5}
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncols=4, frameon=False, fontsize="small", **narrow)


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the mean (n,) of each value (n,) and up to `window - 1` values before it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(sums))
    begin = np.maximum(end - window, 0)
    return np.asarray((sums[end] - sums[begin]) / (end - begin))

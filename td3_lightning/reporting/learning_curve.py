"""Callback and functions that draw the learning curve."""

import os
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
from td3_lightning.reporting.metrics_csv import read_metrics

Points = NDArray[np.float64]  # (n, 2), env_steps and value


TRAINING, SPREAD = "train/return", ("eval/return_mean", "eval/return_min", "eval/return_max")


BLUE, PALE_BLUE, ORANGE, INK = "#2f6db5", "#a9c4e4", "#d95f02", "#333333"


class Curve(Callback):
    """Draws `curve.png` beside a RunLogger's files at every evaluation: returns against `env_steps`.

    It reads `metrics.csv`, so it has no state of its own. Without a RunLogger there is no picture.
    """

    def __init__(self) -> None:
        self._warnings = WarningCache()

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draws it anew; the evaluation's row is written by now."""
        logger = next((logger for logger in trainer.loggers if isinstance(logger, RunLogger)), None)
        if logger is None or trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        try:
            write_curve(logger.metrics.path)
        except OSError as error:
            self._warnings.warn(f"The run goes on without curve.png, which could not be written: {error}")


def write_curve(metrics: Path) -> Path:
    """Draws `curve.png` beside a `metrics.csv`, and gives its path; the run's name is that of its folder."""
    picture = metrics.with_name("curve.png")
    half_done = metrics.with_name(".curve.png")
    name = " / ".join(metrics.absolute().parent.parts[-2:])
    draw_curve(read_metrics(metrics, [TRAINING, *SPREAD]), name).savefig(half_done, format="png")
    os.replace(half_done, picture)
    return picture


def draw_curve(series: Mapping[str, Points], title: str) -> Figure:
    """Draws the returns of training and evaluation against `env_steps`.

    Args:
        series: For "train/return" and "eval/return_mean", "_min" and "_max" the points (n, 2).
        title: What stands above.
    """
    figure = Figure(figsize=(9.0, 5.0), dpi=120)
    # Fixed margins: matplotlib's own layouts draw everything twice.
    axes = figure.add_axes((0.09, 0.11, 0.89, 0.75))
    training, mean, low, high = (series[name] for name in (TRAINING, *SPREAD))
    _draw_training(axes, training)
    _draw_evaluation(axes, mean, low, high)
    _fit_heights(axes, training[:, 1], np.concatenate([low[:, 1], high[:, 1]]))
    _dress(axes, title)
    return figure


def _draw_training(axes: Axes, points: Points) -> None:
    if not len(points):
        return
    steps, returns = points.T
    window = max(10, len(returns) // 50)
    size = 6 if len(returns) <= 1000 else 3
    axes.plot(steps, returns, ".", color=PALE_BLUE, ms=size, mew=0, alpha=0.8, label="training episode")
    label = f"training, mean of {window} episodes"
    axes.plot(steps, running_mean(returns, window), color=BLUE, lw=1.6, label=label)


def _draw_evaluation(axes: Axes, mean: Points, low: Points, high: Points) -> None:
    if not len(mean):
        return
    steps, returns = mean.T
    axes.fill_between(steps, low[:, 1], high[:, 1], color=ORANGE, alpha=0.18, lw=0, label="evaluation, min to max")
    marker = "o" if len(steps) <= 60 else ""
    axes.plot(steps, returns, marker=marker, color=ORANGE, lw=1.8, ms=3.5, label="evaluation, mean")
    best = int(returns.argmax())
    axes.plot(*mean[best], "*", color=ORANGE, mec="white", mew=0.8, ms=15, zorder=5)
    # Inwards, so that the words stay in the picture.
    late = steps[best] > (steps[0] + steps[-1]) / 2
    axes.annotate(
        f"best {returns[best]:,.1f} at {steps[best]:,.0f}",
        mean[best],
        xytext=(-12 if late else 12, 10),
        textcoords="offset points",
        ha="right" if late else "left",
        color=ORANGE,
        weight="bold",
        bbox={"fc": "white", "ec": "none", "alpha": 0.7, "pad": 1.5},
    )


def _fit_heights(axes: Axes, training: NDArray[np.float64], evaluation: NDArray[np.float64]) -> None:
    """Shows every evaluation and 98% of the training episodes: a few crashes must not flatten the rest."""
    shown = np.concatenate([np.percentile(training, [1, 99]) if len(training) else training, evaluation])
    if len(shown):
        margin = 0.05 * (shown.max() - shown.min()) or 1.0
        axes.set_ylim(shown.min() - margin, shown.max() + 2.5 * margin)  # room above for the best one's words


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", weight="bold", color=INK, pad=26, parse_math=False)  # a name may contain "$"
    axes.set_xlabel("env_steps", color=INK)
    axes.set_ylabel("return of an episode", color=INK)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.tick_params(color="#bbbbbb", labelcolor=INK)
    axes.grid(color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#bbbbbb")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(-0.01, 0.99),
            ncols=4,
            frameon=False,
            fontsize="small",
            markerscale=1.5,
            handlelength=1.5,
        )


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """The mean (n,) of each value of (n,) and those before it, at most `window` in all."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(sums))
    begin = np.maximum(end - window, 0)
    return np.asarray((sums[end] - sums[begin]) / (end - begin))

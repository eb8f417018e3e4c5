"""What a person sees of a run: the curve's picture, the progress bar, and a test's table."""

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.utilities import rank_zero_only
from lightning_utilities.core.rank_zero import WarningCache
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from td3_lightning.collector import Collector
from td3_lightning.data import ReplayData
from td3_lightning.run_logger import RunLogger, read_metrics
from td3_lightning.speech import printable, say, show

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


class Progress(ProgressBar):
    """One bar for the whole run, counted in environment steps, and a line that stays for every evaluation.

    Where the output is no terminal, there are the lines alone.

    Args:
        refresh_seconds: Least time between two drawings of the bar, in seconds.
    """

    def __init__(self, refresh_seconds: float = 0.2) -> None:
        super().__init__()
        self.refresh_seconds = refresh_seconds
        self.best: dict[str, float] = {}  # the best evaluation's return and env_steps
        self._enabled = True
        self._bar: Tqdm | None = None  # made when it is drawn first
        self._total: int | None = None  # where the bar is full
        self._drawn = 0.0  # when the bar was drawn last
        self._began = 0.0  # when `fit` began
        self._warmed_up = (0, 0.0)  # env_steps and time when updates began
        self._collector: Collector | None = None

    def disable(self) -> None:
        """Shows nothing from now on."""
        self._enabled = False

    def enable(self) -> None:
        """Shows the bar and the lines again."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints above the bar."""
        with Tqdm.external_write_mode(file=sys.stdout):
            say(*args, **kwargs)

    # Training.

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Opens the bar."""
        self._collector = next((c for c in trainer.callbacks if isinstance(c, Collector)), None)  # type: ignore[attr-defined]
        self._began, self._warmed_up = time.monotonic(), (0, 0.0)
        keepers: list[Any] = [each for each in trainer.checkpoint_callbacks if getattr(each, "monitor", None)]
        if keepers and all(each.best_model_score is None for each in keepers):
            self.best = {}  # it went on in a folder of its own, where the best ones begin anew
        self._open(_last_env_step(trainer, pl_module.env_steps, self._collector))
        self._draw(pl_module.env_steps, "warm-up")

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Starts the clock of the speed, the first time: warm-up steps are not like the others."""
        if not self._warmed_up[1]:
            self._warmed_up = (pl_module.env_steps, time.monotonic())

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        """Draws the bar if it is time."""
        if self._is_due():
            self._draw(pl_module.env_steps, self._standing(pl_module))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Leaves the last epoch's bar standing, before Lightning says why it stopped."""
        if trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs:
            self._draw(pl_module.env_steps, self._standing(pl_module))
            self._close()

    # Evaluation, within `fit` and by itself.

    def on_validation_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Opens a bar of episodes for `validate`; in `fit` the bar stays."""
        if trainer.state.fn != "fit":
            self._open(self._episodes_in_all(trainer))

    def on_test_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Opens a bar of episodes."""
        self._open(self._episodes_in_all(trainer))

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Counts the episodes, where they take long enough to be seen."""
        if trainer.sanity_checking or not self._is_due():
            return
        counted = f"episode {batch_idx + 1} of {self._episodes_in_all(trainer)}"
        if trainer.state.fn == "fit":
            self._draw(pl_module.env_steps, f"evaluation: {counted}, {self._standing(pl_module)}")
        else:
            self._draw(batch_idx + 1, f"{counted}, return {_short(outputs['return'])}")

    on_test_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Takes the bar of `validate` away."""
        if trainer.state.fn != "fit":
            self._close()

    on_test_epoch_end = on_validation_epoch_end

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Remembers the best evaluation and writes this one's line."""
        numbers = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if trainer.state.fn != "fit" or trainer.sanity_checking or "eval/return_mean" not in numbers:
            return
        line = self._evaluation_line(pl_module.env_steps, numbers["eval/return_mean"], numbers["eval/return_std"])
        if self._enabled:
            self._draw(pl_module.env_steps, self._standing(pl_module))
            self.print(line)

    def _evaluation_line(self, env_steps: int, mean: float, std: float) -> str:
        if mean > self.best.get("return", -math.inf):
            self.best = {"return": mean, "env_steps": env_steps}
            best = "the best so far"
        else:
            best = f"best {self.best['return']:,.2f} at {self.best['env_steps']:,}" if self.best else ""
        elapsed = Tqdm.format_interval(time.monotonic() - self._began)
        return f"{elapsed:>8}{env_steps:>10,} env_steps  return {mean:>9,.2f} ± {std:<7,.2f}  {best}"

    # State and ends.

    def state_dict(self) -> dict[str, Any]:
        """The best evaluation."""
        return {"best": dict(self.best)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes it back."""
        self.best = dict(state_dict["best"])

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        """Leaves the bar where it is, so that what is printed next has a line of its own."""
        self._close()

    def teardown(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        """Closes the bar."""
        self._close()

    # The bar.

    def _open(self, total: int | None) -> None:
        self._close()
        self._total, self._drawn = total, time.monotonic()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _is_due(self) -> bool:
        return self._enabled and time.monotonic() - self._drawn >= self.refresh_seconds

    def _draw(self, done: int, text: str) -> None:
        if not self._enabled:
            return
        if self._bar is None:
            # disable=None means where the output is no terminal.
            self._bar = Tqdm(
                total=self._total,
                initial=done,
                desc=printable(text, sys.stdout),
                disable=None,
                file=sys.stdout,
                dynamic_ncols=True,
                leave=self.trainer.state.fn == "fit",
                bar_format="{percentage:3.0f}%|{bar}| {desc}",
            )
        if self._total is not None:
            self._bar.total = max(self._total, done)  # tqdm shows no bar beyond the total
        self._bar.n, self._drawn = done, time.monotonic()
        self._bar.set_description_str(printable(text, sys.stdout))

    def _standing(self, module: Any) -> str:
        """Where the run stands, in words; what matters most comes first, for narrow terminals."""
        of_all = f"/{self._total:,}" if self._total else ""
        parts = [f"{module.env_steps:,}{of_all} env_steps"]
        if self.best:
            parts.append(f"best {_short(self.best['return'])}")
        if self._collector is not None and math.isfinite(self._collector.last_return):
            parts.append(f"last {_short(self._collector.last_return)}")
        steps, began = self._warmed_up
        speed = (module.env_steps - steps) / max(time.monotonic() - began, 1e-9)
        if speed:
            parts.append(f"{speed:,.0f}/s")
        if speed and self._total:
            left = max(self._total - module.env_steps, 0) / speed
            parts.append(f"{Tqdm.format_interval(left)} left")
        return ", ".join([*parts, f"episodes {module.episodes:,}"])

    def _episodes_in_all(self, trainer: L.Trainer) -> int:
        return int(sum(trainer.num_test_batches if trainer.testing else trainer.num_val_batches))


def _short(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def _last_env_step(trainer: L.Trainer, env_steps: int, collector: Collector | None) -> int | None:
    """Where `max_epochs` will end the run; None if nothing bounds it."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(data, ReplayData) or trainer.max_epochs is None or trainer.max_epochs < 0:
        return None
    loop = trainer.fit_loop  # epochs before this stage may have had another length
    done = loop.epoch_loop.batch_progress.current.ready if loop.restarted_mid_epoch else 0
    updates = (trainer.max_epochs - trainer.current_epoch) * int(trainer.num_training_batches) - done
    warmup = collector.warmup_steps if collector is not None else 0
    begin = env_steps + max(warmup - min(env_steps, data.replay.steps_stored), 0)

    def rounded_up(steps: float) -> int:
        return math.ceil(steps / data.num_envs) * data.num_envs

    return rounded_up(begin) + rounded_up(updates / data.updates_per_step)


class Results(Callback):
    """Prints a table after `test` and `validate`: every number of the episodes, and their time."""

    def __init__(self) -> None:
        self._episodes: list[dict[str, float]] = []
        self._seeds: list[int] = []
        self._began = 0.0

    def on_test_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Forgets an earlier test."""
        self._episodes, self._seeds = [], []

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Starts an episode's clock."""
        self._began = time.perf_counter()

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Notes what the episode reported, and its time."""
        first = {name: outputs[name] for name in ("return", "length")}
        self._episodes.append({**first, **outputs, "wall time (s)": time.perf_counter() - self._began})
        self._seeds.append(batch.seed)

    @rank_zero_only
    def on_test_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Prints them."""
        if trainer.state.fn == "fit" or not self._episodes:
            return
        count, seeds = len(self._episodes), f"{min(self._seeds)} to {max(self._seeds)}"
        print(f"\n{count} episodes, seeds {seeds}, after {pl_module.env_steps:,} env_steps of training")
        show(results_table(self._episodes))

    on_validation_start = on_test_start
    on_validation_batch_start = on_test_batch_start
    on_validation_batch_end = on_test_batch_end
    on_validation_end = on_test_end


def results_table(episodes: Sequence[Mapping[str, float]]) -> Table:
    """A row for each number of the episodes: mean ± standard deviation, least and most; "3 of 3" for truths."""
    table = Table("of an episode", *("mean ± std", "min", "max"))
    for column in table.columns[1:]:
        column.justify = "right"
    for name in dict.fromkeys(name for episode in episodes for name in episode):
        values = np.array([episode[name] for episode in episodes if name in episode])
        if name not in ("return", "length") and np.isin(values, (0.0, 1.0)).all():
            table.add_row(escape(name), f"{values.sum():.0f} of {len(values)}", "", "")
        else:
            spread = f"{values.mean():,.2f} ± {values.std():,.2f}"
            table.add_row(escape(name), spread, _number(values.min()), _number(values.max()))
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"

"""Text that `fit` prints at its start and at its end, and the results of `test` and `validate`."""

import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import rank_zero_only
from rich.markup import escape
from rich.table import Table

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.reporting.console import show
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.paths import shown
from td3_lightning.training.data_module import ReplayData


def start_lines(trainer: L.Trainer, model: TD3, data: ReplayData, seed: str, start: Path) -> list[str]:
    """Describe a run in lines of 80 columns: its environment, networks, replay buffer, seed and logs."""
    replay = data.replay
    widths = "-".join(map(str, model.hparams["hidden_dims"])) or "no hidden layers"
    weights = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    megabytes = replay.capacity * replay.transition_bytes / 1e6
    loggers = [logger for logger in trainer.loggers if not isinstance(logger, DummyLogger)]
    folders = [shown(logger.log_dir, start) for logger in loggers if isinstance(logger, RunLogger)]
    others = [type(logger).__name__ for logger in loggers if not isinstance(logger, RunLogger)]
    lines = [
        f"environment  {data.env_id}: observations of {data.obs_dim} numbers, actions of {len(data.action_low)}",
        f"networks     {widths}, 1 actor and {model.hparams['num_critics']} critics: {weights:,} weights",
        f"replay       {replay.capacity:,} rows of {replay.transition_bytes} bytes: {megabytes:,.1f} MB when full",
        *([f"dataset      {data.dataset.name}: {data.dataset.summary}"] if data.dataset is not None else []),
        f"seed         {seed}",
        f"logs         {', '.join(folders + others) or 'none'}",
    ]
    wrapper = textwrap.TextWrapper(80, subsequent_indent=" " * 13, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in wrapper.wrap(line)]


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run that has ended: its best evaluation, its files and the next commands.

    Args:
        folder: Folder of the run. None without a RunLogger.
        last: Path of last.ckpt. None if the run has not saved it.
        best: Path of the best checkpoint. None without one.
        start: Working directory of the command. Paths below it are shown relative to it.
        with_config: Whether the other commands require the configuration besides the checkpoint.
        monitor: Metric that decides which evaluation is the best.
        score: Its value at the best checkpoint. None without one.
    """

    folder: Path | None
    last: Path | None
    best: Path | None
    start: Path
    with_config: bool
    monitor: str = ""
    score: float | None = None

    def lines(self, seconds: float) -> list[str]:
        """Describe the best evaluation, the duration and the files. Files that do not exist are left out."""
        curve = self.folder / "curve.png" if self.folder else None
        described = {
            "best": f"{self.monitor} {self.score:,.2f}" if self.score is not None else None,
            "checkpoint": shown(self.best, self.start) if self.best else None,
            "curve": shown(curve, self.start) if curve and curve.exists() else None,
            "time": str(timedelta(seconds=round(seconds))),
        }
        return [f"{name:<12} {text}" for name, text in described.items() if text]

    def next_lines(self, data: ReplayData, trainer: L.Trainer) -> list[str]:
        """List commands that test, record and resume the run, for a shell. Those that lack a file are left out."""
        lines, checkpoint, config = [], self.best or self.last, self._config
        if checkpoint and (config or not self.with_config):
            words = ["--ckpt_path", shown(checkpoint, self.start)]
            if config and self.with_config:
                words = ["--config", shown(config, self.start), *words]
            lines += command_lines("test", command("test", *words))
            if "rgb_array" in (data.eval_env.metadata.get("render_modes") or []):
                lines += command_lines("record", command("record", *words))
        most = trainer.max_epochs
        if most is not None and 0 < most <= trainer.current_epoch:  # otherwise a stopping criterion ended the run
            resume = self.resume_command("--trainer.max_epochs", str(2 * most))
            lines += command_lines("resume", resume) if resume else []
        return lines

    def resume_command(self, *flags: str) -> str | None:
        """Return the command that resumes the run. None if the run has not saved its configuration and last.ckpt."""
        if self._config is None or self.last is None or not self.last.exists():
            return None
        paths = ("--config", shown(self._config, self.start), "--ckpt_path", shown(self.last, self.start))
        return command("fit", *paths, *flags)

    @property
    def _config(self) -> Path | None:
        """The configuration of the run, if it was saved."""
        path = self.folder / "config.yaml" if self.folder else None
        return path if path and path.exists() else None


def command_lines(purpose: str, text: str) -> list[str]:
    """Return the purpose of a command and, on its own line to copy, the command."""
    return [f"To {purpose}:", f"  {text}"]


def command(*words: str) -> str:
    """Return a command line for a shell, with this Python if the shell does not find this environment's program."""
    found = shutil.which("td3-lightning")
    is_own = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)
    return shlex.join([*(["td3-lightning"] if is_own else [sys.executable, "-m", "td3_lightning"]), *words])


def short(value: float) -> str:
    """Return a number with two decimals, or without decimals if it is an integer."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


class Results(Callback):
    """Print a table of the episodes of `test` and `validate`: their metrics and wall time."""

    def __init__(self) -> None:
        self._episodes: list[dict[str, float]] = []
        self._seeds: list[int] = []
        self._start_time = 0.0

    def on_test_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Discard the episodes of an earlier test."""
        self._episodes, self._seeds = [], []

    def on_test_batch_start(self, *args: Any, **kwargs: Any) -> None:
        """Store the start time of an episode."""
        self._start_time = time.perf_counter()

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Store the metrics and the wall time of an episode."""
        first = {name: outputs[name] for name in ("return", "length")}
        self._episodes.append({**first, **outputs, "wall time (s)": time.perf_counter() - self._start_time})
        self._seeds.append(batch.seed)

    @rank_zero_only
    def on_test_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Print the table."""
        if trainer.state.fn == "fit" or not self._episodes:
            return
        first, last = min(self._seeds), max(self._seeds)
        seeds = (
            f"{len(self._episodes)} episodes, seeds {first} to {last}" if last > first else f"1 episode, seed {first}"
        )
        print(f"\n{seeds}, after {pl_module.clock:,} {pl_module.clock_name} of training")
        show(results_table(self._episodes))

    on_validation_start = on_test_start
    on_validation_batch_start = on_test_batch_start
    on_validation_batch_end = on_test_batch_end
    on_validation_end = on_test_end


def results_table(episodes: Sequence[Mapping[str, float]]) -> Table:
    """Build a table with a row for each metric: mean ± standard deviation, min and max.

    A metric whose values are all 0 or 1 is shown as a count, for example "3 of 3". The standard deviation is left out
    if there is only one value. Metrics with the same values share a row. A metric that some episodes do not report is
    marked with the number of those that do.
    """
    table = Table("per episode", *("mean ± std", "min", "max"))
    for column in table.columns[1:]:
        column.justify = "right"
    rows: dict[tuple[float | None, ...], list[str]] = {}  # names by the values of all episodes
    for name in dict.fromkeys(name for episode in episodes for name in episode):
        rows.setdefault(tuple(episode.get(name) for episode in episodes), []).append(name)
    for held, names in rows.items():
        values = np.array([value for value in held if value is not None])
        partly = "" if len(values) == len(held) else f" (reported by {len(values)} of {len(held)} episodes)"
        label = escape(", ".join(names) + partly)
        if names[0] not in ("return", "length") and np.isin(values, (0.0, 1.0)).all():
            table.add_row(label, f"{values.sum():.0f} of {len(values)}", "", "")
        else:
            spread = f" ± {values.std():,.2f}" if len(values) > 1 else ""
            table.add_row(label, f"{values.mean():,.2f}{spread}", short(values.min()), short(values.max()))
    return table

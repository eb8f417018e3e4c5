"""The result of a run so far, and tables of results."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from td3_lightning.atomic_files import atomic_write

Points = NDArray[np.float64]  # (n, 2), env_steps and metric

LAST = 10  # evaluations in the mean at the end of a run
COLUMNS = ("env_steps", "best", "best_at", "last", "last_10")


@dataclass(frozen=True)
class Result:
    """Evaluations of a run so far.

    Attributes:
        label: Name of the run, for example "trial 3".
        state: "waiting", "running", "unfinished", "finished", "pruned" or "failed".
        points: Evaluations, (n, 2): env_steps and metric.
        mode: "max" if a larger metric is better, otherwise "min".
        settings: Settings of this run alone.
        error: Reason of a failure.
        seconds: Wall time of all starts.
        clock: Unit of the steps, see `Plan`.
    """

    label: str
    state: str
    points: Points
    mode: str = "max"
    settings: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    seconds: float | None = None
    clock: str = "env_steps"

    @property
    def values(self) -> dict[str, float]:
        """Return the best evaluation and its step, the last evaluation and its step, and the mean of the last 10.

        The mapping is empty before the first evaluation. With fewer than 10 evaluations, all of them are averaged.
        """
        if not len(self.points):
            return {}
        steps, scores = self.points.T
        best = int(scores.argmax() if self.mode == "max" else scores.argmin())
        return {
            "env_steps": float(steps[-1]),
            "best": float(scores[best]),
            "best_at": float(steps[best]),
            "last": float(scores[-1]),
            "last_10": float(scores[-LAST:].mean()),
        }

    @property
    def status(self) -> str:
        """Return the state, with the reason of a failure."""
        return f"{self.state}: {self.error}" if self.error else self.state

    def row(self) -> list[str]:
        """Return the cells of a table: numbers with two decimals, "-" before the first evaluation."""
        scores = [number(self.values.get(name)) for name in ("best", "last", "last_10")]
        return [self.label, number(self.values.get("env_steps")).removesuffix(".00"), *scores, self.status]


def number(value: float | None) -> str:
    """Return a metric with two decimals, "-" if there is none."""
    return "-" if value is None else f"{value:,.2f}"


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings in one line: their names without the section, and floats with three digits."""
    cells = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in settings.values())
    return ", ".join(f"{name.split('.')[-1]} {cell}" for name, cell in zip(settings, cells, strict=True))


def results_table(results: Sequence[Result], metric: str, most: int = 20) -> Table:
    """Build a table with a row for each run, at most `most` rows."""
    table = Table(title=metric + (f", {most} of {len(results)} runs" if len(results) > most else ""))
    for name in ("run", results[0].clock, "best", "last", "last 10"):
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=True)
    has_settings = any(result.settings for result in results)
    table.add_column("state", no_wrap=has_settings, max_width=24 if has_settings else None)
    if has_settings:
        table.add_column("settings")  # the only column that a narrow terminal cuts off
    for result in results[:most]:
        cells: list[RenderableType] = [escape(cell) for cell in result.row()]
        settings = Text(settings_text(result.settings), no_wrap=True, overflow="ellipsis")
        table.add_row(*cells, *([settings] if has_settings else []))
    return table


def write_csv(results: Sequence[Result], path: Path) -> None:
    """Write all results, one row for each run, with a column for each setting."""
    names = list(dict.fromkeys(name for result in results for name in result.settings))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["run", "state", results[0].clock, *COLUMNS[1:], "seconds", *names, "error"])
    for result in results:
        numbers = [result.values.get(name) for name in COLUMNS]
        held = [result.settings.get(name) for name in names]
        rows.writerow([result.label, result.state, *numbers, result.seconds, *held, result.error])
    atomic_write(path, lambda file: file.write(text.getvalue().encode()))

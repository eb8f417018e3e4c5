"""One logger for a run: TensorBoard's events and `metrics.csv` in one folder, both against `env_steps`."""

import csv
import io
import os
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from numpy.typing import NDArray

AXIS = "env_steps"  # the first column, and what every scalar is drawn against


class MetricsFile:
    """A CSV file that grows by rows and, rarely, by columns; every row is on disk once it is appended.

    A row leaves the columns that it does not name empty. A new column goes to the right, for which the file
    is rewritten once; a row keeps its number. An existing file is continued, without the part of a row at its
    end that a killed process may have left.

    Args:
        path: The file; it and its folder are made with the first row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []
        self.rows = 0
        if path.exists():
            self._continue()

    def append(self, row: Mapping[str, float | None]) -> None:
        """Writes a row; its keys name the columns."""
        new = [name for name in row if name not in self.columns]
        if new:
            self._widen(new)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(_line(_cell(row.get(name)) for name in self.columns))
        self.rows += 1

    def _continue(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        self.columns = next(csv.reader(whole.decode("utf-8").split("\n")), [])
        self.rows = max(whole.count(b"\n") - 1, 0)

    def _widen(self, new: list[str]) -> None:
        """Adds columns; a reader, or a kill, meets the old file or the new one, never half of it."""
        old = self.path.read_text(encoding="utf-8").split("\n")[1:-1] if self.path.exists() else []
        self.columns = self.columns + new
        self.path.parent.mkdir(parents=True, exist_ok=True)
        wider = self.path.with_name(f".{self.path.name}.new")
        padding = "," * len(new) + "\n"
        with wider.open("w", encoding="utf-8", newline="") as file:
            file.write(_line(self.columns))
            file.writelines(row + padding for row in old)
        wider.replace(self.path)


def read_metrics(path: Path, names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Reads series from a `metrics.csv`.

    Args:
        path: The file.
        names: Columns to read.

    Returns:
        For each name its points (n, 2), `env_steps` and value, in the file's order; n is 0 without any.
    """
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        where = [(header.index(name), points[name]) for name in names if name in header]
        axis = header.index(AXIS) if where else 0
        for row in rows:
            if len(row) != len(header):
                continue  # the run is still writing it
            for column, series in where:
                if row[column]:
                    series.append((float(row[axis] or "nan"), float(row[column])))
    return {name: np.array(series, dtype=np.float64).reshape(-1, 2) for name, series in points.items()}


class RunLogger(TensorBoardLogger):
    """Writes TensorBoard's events and `metrics.csv`, a row for each call, in one folder.

    The folder, `save_dir/name/version_N`, is made when the first metric comes. If it holds a `metrics.csv`
    already, that is continued.

    Args:
        save_dir: Folder of all runs.
        name: Folder of the runs of one kind.
        version: Number or name of this run; None takes the next free number.
    """

    def __init__(
        self, save_dir: str = "lightning_logs", name: str = "default", version: int | str | None = None
    ) -> None:
        super().__init__(save_dir, name=name, version=version, default_hp_metric=False)

    @cached_property
    def metrics(self) -> MetricsFile:
        """The run's `metrics.csv`."""
        return MetricsFile(Path(self.log_dir, "metrics.csv"))

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """TensorBoard's writer, once something is logged.

        Raises:
            AttributeError: Nothing is logged yet. Lightning asks for the writer before it knows that a run can
                begin, does without if there is none, and a writer would make the folder.
        """
        if not self.metrics.rows:
            raise AttributeError("TensorBoard's writer begins with the first metric; log one before you use it.")
        return super().experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Logs numbers.

        Args:
            metrics: Names and numbers; `env_steps` among them is left out, as it is the axis.
            step: Their place on the axis, in environment steps.
        """
        values = {name: float(value) for name, value in metrics.items() if name != AXIS}
        self.metrics.append({AXIS: step, **values})
        super().log_metrics(values, step)

    @rank_zero_only
    def log_hyperparams(
        self,
        params: dict[str, Any] | Namespace,
        metrics: dict[str, Any] | None = None,
        step: int | None = None,
    ) -> None:
        """Keeps the hyperparameters for `hparams.yaml`, objects as their class and arguments.

        Args:
            params: Names and values.
            metrics: Not used.
            step: Not used.
        """
        self.hparams.update(_plain(vars(params) if isinstance(params, Namespace) else params))

    @rank_zero_only
    def save(self) -> None:
        """Flushes the events and writes `hparams.yaml`, unless nothing is logged yet; rows need no flush."""
        if self.metrics.rows:
            super().save()


def _line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _cell(value: float | None) -> str:
    return "" if value is None else repr(float(value)).removesuffix(".0")  # it reads back to the same bits


def _plain(value: Any) -> Any:
    """What YAML can say without naming Python: numbers, strings, lists, mappings."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not hasattr(value, "__dict__"):
        return str(value)
    kind = type(value)
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": _plain(vars(value))}

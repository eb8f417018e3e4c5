"""The file metrics.csv of a run."""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from td3_lightning.reporting.paths import check_link

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
        check_link(path)
        if path.exists():
            self._continue()

    def append(self, row: Mapping[str, float | None]) -> None:
        """Writes a row; its keys name the columns."""
        new = [name for name in row if name not in self.columns]
        if new:
            self._widen(new)
        size = self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(_line(_cell(row.get(name)) for name in self.columns))
        except OSError:
            os.truncate(self.path, size)  # the next row would be glued to half of this one
            raise
        self.rows += 1

    def is_deleted(self) -> bool:
        """Whether someone took the file away."""
        return self.rows > 0 and not self.path.exists()

    def cut(self, rows: int) -> None:
        """Takes away all rows but the first so many."""
        if rows >= self.rows:
            return
        lines = self.path.read_bytes().split(b"\n")[: rows + 1]
        os.truncate(self.path, sum(len(line) + 1 for line in lines))
        self.rows = rows

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
        columns = self.columns + new
        self.path.parent.mkdir(parents=True, exist_ok=True)
        wider = self.path.with_name(f".{self.path.name}.new")
        padding = "," * len(new) + "\n"
        with wider.open("w", encoding="utf-8", newline="") as file:
            file.write(_line(columns))
            file.writelines(row + padding for row in old)
        wider.replace(self.path)
        self.columns = columns


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


def _line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _cell(value: float | None) -> str:
    return "" if value is None else repr(float(value)).removesuffix(".0")  # it reads back to the same bits

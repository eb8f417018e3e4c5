"""Read and write the `metrics.csv` of a run."""

import csv
import gzip
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from td3_lightning.atomic_files import atomic_write
from td3_lightning.reporting.paths import check_link

Points = NDArray[np.float64]  # (n, 2), clock and value
CLOCKS = ("env_steps", "updates")  # possible first columns of the file, the x axis of every scalar


class MetricsFile:
    """Append rows to a CSV file. Each row is written at once.

    Columns that a row does not contain stay empty. New columns are added on the right, which rewrites the file. An
    existing file is continued. An incomplete last row, left by a killed process, is removed.

    Args:
        path: Path of the file. The file and its folder are created with the first row.

    Raises:
        UsageError: The path is a symlink to another folder, or no regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []
        self.rows = 0
        check_link(path)
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        self.columns = next(csv.reader(whole.decode("utf-8-sig").split("\n")), [])
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        self.rows = max(whole.count(b"\n") - 1, 0)

    def append(self, row: Mapping[str, float | None]) -> None:
        """Append a row, given as column names and values."""
        new = [name for name in row if name not in self.columns]
        if new:  # replace the file atomically, so that readers never see an incomplete one
            old = self.path.read_text(encoding="utf-8").split("\n")[1:-1] if self.path.exists() else []
            columns, padding = self.columns + new, "," * len(new) + "\n"
            text = "".join([_line(columns), *(line + padding for line in old)])
            atomic_write(self.path, lambda file: file.write(text.encode()))
            self.columns = columns
        size = self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(_line(_cell(row.get(name)) for name in self.columns))
        except OSError:
            os.truncate(self.path, size)  # otherwise the next row would continue the incomplete one
            raise
        self.rows += 1

    def truncate(self, rows: int) -> None:
        """Keep only the first `rows` rows."""
        if rows >= self.rows:
            return
        lines = self.path.read_bytes().split(b"\n")[: rows + 1]
        os.truncate(self.path, sum(len(line) + 1 for line in lines))
        self.rows = rows


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file with a column for each name in any of the rows."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    atomic_write(path, lambda file: file.write(text.getvalue().encode()))


def column_of(name: object) -> str:
    """Convert the name of a metric to one line of text that UTF-8 can encode."""
    return " ".join(str(name).split()).encode("utf-8", "replace").decode("utf-8")


def axis_of(header: Sequence[str]) -> str | None:
    """Return the x axis of a `metrics.csv`: "env_steps", "updates" without environment steps, or None."""
    return next((name for name in CLOCKS if name in header), None)


def read_header(path: Path) -> list[str]:
    """Return the columns of a `metrics.csv`, which may be compressed; none if it does not exist."""
    try:
        with _open(path) as file:
            return next(csv.reader(_lines(file)), [])
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_metrics(path: Path, names: Sequence[str]) -> dict[str, Points]:
    """Read metrics from a `metrics.csv`.

    Args:
        path: Path of the file, which may be compressed as `.csv.gz`.
        names: Columns to read.

    Returns:
        The points (n, 2) of each column: clock and value, in the order of the file. The clock is `env_steps`, or
        `updates` in a run without environment steps.
    """
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with _open(path) as file:
        rows = csv.reader(_lines(file))
        header = next(rows, [])
        where = [(header.index(name), points[name]) for name in names if name in header]
        axis = header.index(axis_of(header) or CLOCKS[0]) if where else 0
        for row in rows:
            if len(row) != len(header):
                continue  # not written by this package
            for column, series in where:
                if row[column]:
                    series.append((float(row[axis] or "nan"), float(row[column])))
    return {name: np.array(series, dtype=np.float64).reshape(-1, 2) for name, series in points.items()}


def _lines(file: IO[str]) -> Iterator[str]:
    """Yield lines with an end. The run is still writing another one, or was killed, so a number may lack digits."""
    return (line for line in file if line.endswith(("\n", "\r")))


def _open(path: Path) -> IO[str]:
    """Open a file, without the byte order mark that a spreadsheet writes."""
    open_text: Any = gzip.open if path.suffix == ".gz" else open
    file: IO[str] = open_text(path, "rt", encoding="utf-8-sig", newline="")
    return file


def _line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _cell(value: float | None) -> str:
    return "" if value is None else repr(float(value)).removesuffix(".0")  # repr is exact

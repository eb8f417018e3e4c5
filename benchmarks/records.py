"""One result file for each type of machine: every run adds rows to a JSON file, and a Markdown file shows them."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.interleaved import Measurement
from benchmarks.workloads import WORKLOADS

RUN_COLUMNS = ("run", "date", "commit", "cpu", "gpu", "load", "versions", "protocol", "command")
ROW_COLUMNS = ("implementation", "run", "commit")
OURS = "td3_lightning"
HEADER = (
    "steps/s, median",
    f"speedup of {OURS}, median (min to max)",
    "start to first update, s",
    "peak memory, MB",
    "bytes per transition",
)
Row = dict[str, Any]


class Records:
    """The runs on one type of machine, and the rows that they measured.

    Args:
        path: The JSON file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_suffix(".json")
        content = json.loads(self.path.read_text()) if self.path.exists() else {"runs": [], "rows": []}
        self.runs: list[Row] = content["runs"]
        self.rows: list[Row] = content["rows"]

    def add(self, conditions: Mapping[str, str], measured: Mapping[str, Sequence[Measurement]]) -> None:
        """Append one run with its measurements for each workload."""
        run = 1 + max((each["run"] for each in self.runs), default=0)
        self.runs.append({"run": run, **conditions})
        self.rows += [
            {"run": run, "workload": workload, **asdict(each)} for workload, group in measured.items() for each in group
        ]

    def write(self) -> None:
        """Write the JSON file, one row per line, and the Markdown file beside it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lists = [
            f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]"
            for name, rows in (("runs", self.runs), ("rows", self.rows))
        ]
        self.path.write_text("{\n" + ",\n".join(lists) + "\n}\n")
        self.path.with_suffix(".md").write_text(self.markdown())

    def markdown(self) -> str:
        """Return the conditions of every run, and a table for each workload."""
        sections = [f"# Speed: {self.path.stem}", self._runs_table()]
        for workload in dict.fromkeys(row["workload"] for row in self.rows):
            sections += [f"## {workload}: {WORKLOADS[workload].title}", self._rows_table(workload)]
        return "\n\n".join(sections) + "\n"

    def _runs_table(self) -> str:
        columns = [name for name in RUN_COLUMNS if any(run.get(name) for run in self.runs)]
        return markdown_table(columns, [[str(run.get(name, "")) for name in columns] for run in self.runs])

    def _rows_table(self, workload: str) -> str:
        cells = []
        for run in self.runs:
            rows = [row for row in self.rows if (row["run"], row["workload"]) == (run["run"], workload)]
            for row in ranked(rows):
                cells.append([row["title"], str(run["run"]), run.get("commit", ""), *row_cells(row, ours(rows))])
        return markdown_table([*ROW_COLUMNS, *HEADER], cells)


def comparison_table(measurements: Sequence[Measurement]) -> str:
    """Return a table of the measurements, the fastest first."""
    rows = [asdict(each) for each in measurements]
    if not rows:
        return "No implementation was measured."
    cells = [[row["title"], *row_cells(row, ours(rows))] for row in ranked(rows)]
    return markdown_table(["implementation", *HEADER], cells)


def ours(rows: Sequence[Row]) -> Row | None:
    """Return the row that the others are compared with, if it was measured."""
    return next((row for row in rows if row["title"] == OURS), None)


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, the fastest first."""
    return sorted(rows, key=lambda row: -statistics.median(row["steps_per_second"]))


def row_cells(row: Row, reference: Row | None) -> list[str]:
    """Return the cells of HEADER."""
    replay = row["transition_bytes"]
    return [
        f"{statistics.median(row['steps_per_second']):,.0f}",
        "" if reference is None else speedup(reference["steps_per_second"], row["steps_per_second"]),
        "" if replay is None else f"{row['seconds_to_first_update']:.1f}",
        f"{row['peak_memory'] / 1e6:,.0f}",
        "" if replay is None else f"{replay:.0f}",
    ]


def speedup(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the ratio of two speeds over windows that were measured in turn."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with the first column aligned left."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

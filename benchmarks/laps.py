"""python -m benchmarks.laps METRICS...: summarize the evaluations of car runs from their metrics files."""

import argparse
import csv
import gzip
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

NOTEBOOK_FRAMES = 825  # the lap that the car notebook reports
HEADER = (
    "best evaluation",
    "frames",
    "reached after",
    "first whole lap after",
    f"under {NOTEBOOK_FRAMES} frames after",
    "whole laps",
    "of the last 10",
    "last evaluation",
)
Evaluation = Mapping[str, str]


def main(args: Sequence[str] | None = None) -> int:
    """Print one row for each metrics file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.laps", description=__doc__)
    parser.add_argument("metrics", nargs="+", type=Path, help="metrics of runs, as metrics.csv or <seed>.csv.gz")
    paths = parser.parse_args(args).metrics
    print(row(["run", *HEADER]))
    print(row(["---"] * (1 + len(HEADER))))
    for path in paths:
        print(row([str(path), *summarize(read_car_evaluations(path))]))
    return 0


def read_rows(path: Path) -> list[Evaluation]:
    """Return the rows of a metrics file."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return list(csv.DictReader(file))


def read_evaluations(path: Path) -> list[Evaluation]:
    """Return the rows of a metrics file that hold an evaluation."""
    return [row for row in read_rows(path) if row.get("eval/return_mean")]


def read_car_evaluations(path: Path) -> list[Evaluation]:
    """Return the evaluations of a car run, or end the program."""
    evaluations = read_evaluations(path) if path.is_file() else []
    if not evaluations or "eval/tiles" not in evaluations[0]:
        sys.exit(f"{path} must be a file with evaluations of the car, got none. Use the metrics.csv of such a run.")
    return evaluations


def summarize(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the cells of HEADER for the evaluations of one run."""
    best = max(evaluations, key=lambda each: float(each["eval/return_mean"]))
    laps = [each for each in evaluations if is_lap(each)]
    fast = [each for each in laps if float(each["eval/frames"]) < NOTEBOOK_FRAMES]
    return [
        f"{float(best['eval/return_mean']):.1f}",
        f"{float(best['eval/frames']):,.0f}",
        f"{int(best['env_steps']):,}",
        first_step(laps),
        first_step(fast),
        f"{len(laps)} of {len(evaluations)}",
        str(sum(map(is_lap, evaluations[-10:]))),
        f"{float(evaluations[-1]['eval/return_mean']):.1f}",
    ]


def is_lap(evaluation: Evaluation) -> bool:
    """Return whether the car drove all tiles."""
    return float(evaluation["eval/tiles"]) == float(evaluation["eval/tiles_total"])


def first_step(evaluations: Sequence[Evaluation]) -> str:
    """Return the environment step of the first evaluation."""
    return f"{int(evaluations[0]['env_steps']):,}" if evaluations else "never"


def row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())

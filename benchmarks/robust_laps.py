"""python -m benchmarks.robust_laps FOLDER: summarize runs of car.yaml and their laps with noise.

FOLDER has seeds/<seed>.csv.gz, the metrics of each run, and robustness/<seed>.csv, the episodes.csv of the command
`robustness` for the policy that the run selected.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.laps import Evaluation, read_evaluations, row

MIN_LAPS, MAX_FRAMES = 0.98, 810  # of an evaluation that passes: share of whole laps, and frames on average
LEVELS = (("0.0", "0.0"), ("0.001", "0.01"), ("0.01", "0.03"))  # std of observation noise and of action noise
HEADER = (
    "seed",
    "selected after",
    *("without noise", "1e-3 / 0.01", "1e-2 / 0.03"),
    "laps of the last 10 evaluations",
    "of the last 10 evaluations, those with whole laps only",
    f"first evaluation with {MIN_LAPS:.0%} whole laps and under {MAX_FRAMES} frames, after",
)


def main(args: Sequence[str] | None = None) -> int:
    """Print one row for each seed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robust_laps", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="published runs of car.yaml")
    folder = parser.parse_args(args).folder
    print(row(HEADER))
    print(row(["---"] * len(HEADER)))
    for path in sorted((folder / "seeds").glob("*.csv.gz")):
        seed = path.name.removesuffix(".csv.gz")
        print(row([seed, *summarize(read_evaluations(path), read_laps(folder / "robustness" / f"{seed}.csv"))]))
    return 0


def read_laps(path: Path) -> list[Evaluation]:
    """Return the rows of an episodes.csv."""
    with path.open() as file:
        return list(csv.DictReader(file))


def summarize(evaluations: Sequence[Evaluation], laps: Sequence[Evaluation]) -> list[str]:
    """Return the cells of HEADER after the seed."""
    selected = max(evaluations, key=lambda each: float(each["eval/lap_return"]))
    last = [float(each["eval/lap"]) for each in evaluations[-10:]]
    passed = [each for each in evaluations if passes(each)]
    return [
        f"{int(selected['env_steps']):,}",
        *(laps_at(level, laps) for level in LEVELS),
        f"{100 * sum(last) / len(last):.1f}%",
        str(last.count(1.0)),
        f"{int(passed[0]['env_steps']):,}" if passed else "never",
    ]


def passes(evaluation: Evaluation) -> bool:
    """Return whether an evaluation has enough whole laps and few enough frames."""
    return float(evaluation["eval/lap"]) >= MIN_LAPS and float(evaluation["eval/frames"]) < MAX_FRAMES


def laps_at(level: tuple[str, str], laps: Sequence[Evaluation]) -> str:
    """Return the number of whole laps and their mean frames at a level of noise."""
    driven = [each for each in laps if (each["observation_noise"], each["action_noise"]) == level]
    frames = [float(each["frames"]) for each in driven if float(each["lap"]) == 1]
    mean = f", {sum(frames) / len(frames):.1f} frames" if frames else ""
    return f"{len(frames)} of {len(driven)}{mean}"


if __name__ == "__main__":
    sys.exit(main())

"""python -m benchmarks.robust_laps FOLDER: summarize runs of car.yaml and their laps with noise.

FOLDER has seeds/<seed>.csv.gz, the metrics of each run, and robustness/<seed>.csv and <seed>_*.csv, the episodes.csv of
commands `robustness` for the policy that the run selected.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.laps import Evaluation, read_evaluations, row

MIN_LAPS, MAX_FRAMES = 0.98, 810  # of an evaluation that passes: share of whole laps, and frames on average
LAST = 5  # evaluations of a run that show how reliable its policies are
LEVELS = (("0.0", "0.0"), ("0.001", "0.01"), ("0.01", "0.03"))  # std of observation noise and of action noise
HEADER = (
    "seed",
    "selected after",
    *("without noise", "1e-3 / 0.01", "1e-2 / 0.03"),
    f"whole laps of the last {LAST} evaluations",
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
        laps = [lap for each in sorted((folder / "robustness").glob(f"{seed}[._]*")) for lap in read_laps(each)]
        print(row([seed, *summarize(read_evaluations(path), laps)]))
    return 0


def read_laps(path: Path) -> list[Evaluation]:
    """Return the rows of an episodes.csv."""
    with path.open() as file:
        return list(csv.DictReader(file))


def summarize(evaluations: Sequence[Evaluation], laps: Sequence[Evaluation]) -> list[str]:
    """Return the cells of HEADER after the seed."""
    selected = max(evaluations, key=lambda each: float(each["eval/lap_return"]))
    last = [float(each["eval/lap"]) for each in evaluations[-LAST:]]
    passed = [each for each in evaluations if passes(each)]
    return [
        f"{int(selected['env_steps']):,}",
        *(laps_at(level, laps) for level in LEVELS),
        f"{100 * sum(last) / len(last):.1f}%",
        f"{int(passed[0]['env_steps']):,}" if passed else "never",
    ]


def passes(evaluation: Evaluation) -> bool:
    """Return whether an evaluation has enough whole laps, with few enough frames in their mean."""
    laps, value = float(evaluation["eval/lap"]), float(evaluation["eval/lap_return"])
    return laps >= MIN_LAPS and 10 * (1000 - value / laps) < MAX_FRAMES  # a lap returns 1000 - frames / 10


def laps_at(level: tuple[str, str], laps: Sequence[Evaluation]) -> str:
    """Return the number of whole laps and their mean frames at a level of noise."""
    driven = [each for each in laps if (each["observation_noise"], each["action_noise"]) == level]
    frames = [float(each["frames"]) for each in driven if float(each["lap"]) == 1]
    mean = f", {sum(frames) / len(frames):.1f} frames" if frames else ""
    return f"{len(frames)} of {len(driven)}{mean}"


if __name__ == "__main__":
    sys.exit(main())

"""python -m benchmarks.ranks: speed and score of one process and of two, after the same wall time.

Every run is a `fit` that ends after the given time. A rank has an equal share of the cores as threads. The runs take
turns, so that other load on the machine slows down all of them.

    python -m benchmarks.ranks --minutes 3 --tasks lander halfcheetah
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.arguments import positive_float, positive_int
from benchmarks.machine import describe, limit_cores
from benchmarks.records import markdown_table
from benchmarks.workloads import ROOT
from td3_lightning.reporting.metrics_csv import read_metrics

SETUPS = {  # ranks, and environments of each rank
    "1 rank": (1, 1),
    "1 rank, 2 environments": (1, 2),
    "2 ranks": (2, 1),
}
HEADER = ("task", "run", "environment steps/s", "updates/s", "environment steps", "last return", "best return")
SPEED, SCORE = "train/steps_per_second", "eval/return_mean"
END = 120.0  # seconds to finish an update and to save


def main(args: Sequence[str] | None = None) -> int:
    """Train, and print the conditions and the table."""
    options, flags = parse(args)
    cores = limit_cores(options.cores)
    rows = [
        trained_row(task, setup, cores, options.minutes, flags)
        for _ in range(options.rounds)
        for task in options.tasks
        for setup in SETUPS
    ]
    conditions = describe("ranks", cores) | {
        "protocol": f"{options.minutes:g} minutes for each run, start and evaluations included; speeds without them",
        "threads": f"{cores} for 1 rank, {max(cores // 2, 1)} for each of 2 ranks",
    }
    print("\n".join(f"- {name}: {text}" for name, text in conditions.items()))
    print(f"\n{markdown_table(HEADER, rows)}")
    return 0


def parse(args: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the flags of `fit`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ranks",
        description=(__doc__ or "").split("\n")[0],
        epilog="Other flags belong to fit, for example --data.steps_per_epoch 1000.",
        allow_abbrev=False,
    )
    parser.add_argument("--tasks", nargs="+", default=["lander", "halfcheetah"], help="configurations without .yaml")
    parser.add_argument("--minutes", type=positive_float, default=3.0, help="length of a run")
    parser.add_argument("--rounds", type=positive_int, default=1, help="runs of each kind")
    parser.add_argument("--cores", type=positive_int, default=2, help="cores of a run")
    return parser.parse_known_args(args)


def trained_row(task: str, setup: str, cores: int, minutes: float, flags: Sequence[str]) -> list[str]:
    """Train for some minutes, return the row of the run, and delete its files."""
    with tempfile.TemporaryDirectory(prefix="ranks_", ignore_cleanup_errors=True) as folder:
        return row(task, setup, measure(Path(folder), task, setup, cores, minutes, flags))


def measure(folder: Path, task: str, setup: str, cores: int, minutes: float, flags: Sequence[str]) -> Path:
    """Train for some minutes in a folder, and return the `metrics.csv` of the run."""
    ranks, num_envs = SETUPS[setup]
    words = ["--config", f"{task}.yaml", "--trainer.accelerator", "cpu", "--trainer.devices", str(ranks)]
    words += ["--data.num_envs", str(num_envs), "--trainer.max_epochs", "1000000", *flags]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    environment["OMP_NUM_THREADS"] = str(max(cores // ranks, 1))
    line = [sys.executable, "-m", "td3_lightning", "fit", *words, "--trainer.default_root_dir", str(folder)]
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(line, cwd=folder, env=environment, stdout=output, stderr=output)
        try:
            failed = process.wait(60 * minutes) != 0
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait(END)
            failed = False  # the signal ended it
    found = sorted(folder.rglob("metrics.csv"))
    if failed or not found:
        raise SystemExit((folder / "output.txt").read_text()[-500:] or f"{minutes:g} minutes are too short.")
    return found[0]


def row(task: str, setup: str, metrics: Path) -> list[str]:
    """Return a row of the table. Rank 0 logs its own steps, and each rank takes as many."""
    ranks, _ = SETUPS[setup]
    points = read_metrics(metrics, [SPEED, SCORE])
    speeds, scores = points[SPEED], points[SCORE][:, 1]
    speed = median(speeds[:, 1].tolist()) if len(speeds) else float("nan")
    last, best = (f"{scores[-1]:,.1f}", f"{scores.max():,.1f}") if len(scores) else ("", "")
    steps = max((column[-1, 0] for column in points.values() if len(column)), default=0.0)
    return [task, setup, f"{ranks * speed:.0f}", f"{speed:.0f}", f"{ranks * steps:,.0f}", last, best]


if __name__ == "__main__":
    sys.exit(main())

"""python -m benchmarks.sweep_rate: runs per hour of a sweep over seeds, with one worker and with several.

Each measurement is a `sweep --seeds` in an empty folder. The measurements take turns, so that other load on the machine
slows down all of them.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.arguments import positive_int
from benchmarks.machine import describe
from benchmarks.records import markdown_table
from benchmarks.workloads import ROOT


def main(args: Sequence[str] | None = None) -> int:
    """Measure the sweeps, and print the conditions and the table."""
    options, flags = parse(args)
    seconds: dict[int, list[float]] = {workers: [] for workers in options.workers}
    for _ in range(options.rounds):
        for workers, each in seconds.items():
            each.append(measure(workers, options, flags))
    conditions = describe("sweep_rate", max(options.workers)) | {
        "protocol": f"{options.rounds} sweeps of {options.runs} runs for each number of workers, in turn; median",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "cores / workers"),
    }
    print("\n".join(f"- {name}: {text}" for name, text in conditions.items()))
    print()
    print(markdown_table(("workers", "seconds", "runs per hour", "ratio"), rows(seconds, options.runs)))
    return 0


def parse(args: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the flags of `sweep`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sweep_rate",
        description=(__doc__ or "").split("\n")[0],
        epilog="Other flags belong to sweep, for example --trainer.max_epochs 8 or --engine ray.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--workers", type=positive_int, nargs="+", default=[1, 2], help="numbers of workers; the first has ratio 1"
    )
    parser.add_argument("--runs", type=positive_int, default=4, help="runs of each sweep")
    parser.add_argument("--rounds", type=positive_int, default=2, help="sweeps for each number of workers")
    return parser.parse_known_args(args)


def measure(workers: int, options: argparse.Namespace, flags: Sequence[str]) -> float:
    """Return the seconds of a sweep, its start and its report included."""
    words = ["sweep", *flags, "--workers", str(workers), "--seeds", *map(str, range(options.runs))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "td3_lightning", *words, "--trainer.default_root_dir", folder]
        start = time.perf_counter()
        if subprocess.run(line, env=environment, stdout=subprocess.DEVNULL).returncode:
            sys.exit(1)  # the sweep printed its error
        return time.perf_counter() - start


def rows(seconds: dict[int, list[float]], runs: int) -> list[list[str]]:
    """Return the rows of the table."""
    medians = {workers: statistics.median(each) for workers, each in seconds.items()}
    first = next(iter(medians.values()))
    return [
        [str(workers), f"{median:.0f}", f"{3600 * runs / median:.1f}", f"{first / median:.2f}"]
        for workers, median in medians.items()
    ]


if __name__ == "__main__":
    sys.exit(main())

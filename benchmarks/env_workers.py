"""python -m benchmarks.env_workers: speed of training with environments in this process, in workers and in SB3.

All implementations make one update per environment step, so that one number is both speeds. They take turns, one
window each, as in `benchmarks.speed`.

    python -m benchmarks.env_workers --baselines-python .venv-baselines/bin/python
    python -m benchmarks.env_workers --workloads sleep-5 busy-5 --windows 3 --seconds 2
"""

import argparse
import sys
from collections.abc import Sequence
from statistics import median

from benchmarks.arguments import interpreter, positive_float, positive_int
from benchmarks.interleaved import Baseline, Measurement, measure
from benchmarks.machine import describe, limit_cores
from benchmarks.speed import SB3, choose
from benchmarks.workloads import WITH_WORKERS

ALONE = "learner alone"
BASELINES = {  # the implementations to measure
    "alone": Baseline(ALONE, "ours_workers", flags=("--data.updates_per_step", "1000")),
    **{
        kind: Baseline(kind, "ours_workers", flags=("--data.vector_env", kind))
        for kind in ("sync", "async", "overlapped")
    },
    "sb3": Baseline("Stable-Baselines3, SubprocVecEnv", "sb3_workers", SB3),
}


def main(args: Sequence[str] | None = None) -> int:
    """Run the comparison, and print its conditions and its table."""
    options = parse(args)
    cores = limit_cores(options.cores)
    chosen = choose(list(BASELINES), BASELINES, options.baselines_python)
    measured = {
        workload: measure(chosen, workload, options.windows, options.seconds, options.threads)
        for workload in options.workloads
    }
    conditions = describe("env_workers", cores, [options.baselines_python])
    conditions["protocol"] = f"{options.windows} windows of {options.seconds:g} s each, in turn"
    conditions["threads"] = f"{options.threads} for each learner"
    print("\n" + "\n".join(f"- {name}: {text}" for name, text in conditions.items()))
    print(f"\n{table(measured, [baseline.title for baseline in chosen])}")
    return 0


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.env_workers", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--workloads", nargs="+", choices=WITH_WORKERS, default=list(WITH_WORKERS), help="default: all")
    parser.add_argument("--windows", type=positive_int, default=5, help="windows for each implementation")
    parser.add_argument("--seconds", type=positive_float, default=3.0, help="length of a window")
    parser.add_argument("--threads", type=positive_int, default=1, help="threads of each learner")
    parser.add_argument("--cores", type=positive_int, default=2, help="cores of each learner with its environments")
    parser.add_argument(
        "--baselines-python", type=interpreter, default=sys.executable, help="interpreter with the baselines' packages"
    )
    return parser.parse_args(args)


def table(measured: dict[str, list[Measurement]], titles: Sequence[str]) -> str:
    """Return a table of the updates per second, and their share of those of the learner alone.

    Args:
        measured: The measurements of each workload.
        titles: Names of the implementations.
    """
    lines = [f"| environments | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    for name, measurements in measured.items():
        speeds = {each.title: each.steps_per_second for each in measurements}
        cells = [cell(speeds.get(title), speeds.get(ALONE)) for title in titles]
        lines.append(f"| {WITH_WORKERS[name].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(speeds: list[float] | None, alone: list[float] | None) -> str:
    """Return the median speed, and the median share of the learner's speed in the same window."""
    if speeds is None:
        return ""
    if alone is None or alone is speeds:
        return f"{median(speeds):.0f}"
    share = median(one / other for one, other in zip(speeds, alone, strict=True))
    return f"{median(speeds):.0f} ({share:.0%})"


if __name__ == "__main__":
    sys.exit(main())

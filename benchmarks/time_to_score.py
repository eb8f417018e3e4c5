"""python -m benchmarks.time_to_score: the wall time until a score, of our settings that ship and of the zoo's settings.

    python -m benchmarks.time_to_score --task lander --baselines-python .venv-baselines/bin/python
    python -m benchmarks.time_to_score --task halfcheetah --implementations ours sb3 --seeds 1 2 3 --jobs 2

Each run has one thread. The implementations take turns seed by seed, `--jobs` runs at a time. A repeated command keeps
the runs that have ended.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.arguments import interpreter, positive_int
from benchmarks.machine import commit, cpu
from benchmarks.records import markdown_table
from benchmarks.score_run import START, TASKS, ScoreTask
from benchmarks.workloads import ROOT

TITLES = {
    "ours": "td3_lightning, as shipped",
    "sb3": "Stable-Baselines3, zoo settings",
    "sbx": "SBX, zoo settings",
}
HEADER = ("implementation", "reached", "seconds, median (all)", "frames, median (all)")
Points = list[dict[str, float]]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_to_score", description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="lander")
    parser.add_argument("--implementations", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=positive_int, default=1, help="runs at a time; use at most the number of cores")
    parser.add_argument(
        "--baselines-python", type=interpreter, default=sys.executable, help="interpreter that has the other libraries"
    )
    parser.add_argument("--output", type=Path, default=Path("time_to_score"), help="folder of the runs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has not ended yet, and print the table."""
    options = parse(arguments)
    runs = [(name, seed) for seed in options.seeds for name in options.implementations]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda run: train(options, *run), runs))
    task = TASKS[options.task]
    failed = [f"{name}_{seed}" for name, seed in runs if not ended(task, read(results(options, name, seed)))]
    if failed:
        sys.exit(f"Every run must end, got a failure of {', '.join(failed)}. Read output.txt in {options.output}.")
    print(f"{task.env_id}, mean return of {task.score:,.0f} over {task.episodes} episodes")
    print("".join(f"- {line}\n" for line in conditions(options, runs)))
    print(table(task, {TITLES[name]: evaluations(options, name) for name in options.implementations}))
    return 0


def train(options: argparse.Namespace, name: str, seed: int) -> None:
    """Train once, unless this run has ended before."""
    path = results(options, name, seed).absolute()
    folder = path.parent
    if ended(TASKS[options.task], read(path)):
        return
    folder.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    record_conditions(path, options.jobs)
    python = sys.executable if name == "ours" else options.baselines_python
    with (folder / "output.txt").open("w") as output:
        command = [python, "-m", "benchmarks.score_run", name, options.task, str(seed), str(path)]
        subprocess.run(command, cwd=folder, env=environment(), stdout=output, stderr=output)


def record_conditions(path: Path, jobs: int) -> None:
    """Write the CPU and the commit beside the file with the evaluations of a run."""
    path.with_name("conditions.txt").write_text(f"{cpu()}; {commit()}; runs at a time: {jobs}")


def conditions(options: argparse.Namespace, runs: Sequence[tuple[str, int]]) -> list[str]:
    """Return the conditions of the runs, each with its runs: a kept run can be of another commit or machine."""
    names: dict[str, list[str]] = {}
    for name, seed in runs:
        path = results(options, name, seed).with_name("conditions.txt")
        names.setdefault(path.read_text() if path.exists() else "not recorded", []).append(f"{name}_{seed}")
    return [f"{', '.join(those)}: {text}" for text, those in names.items()]


def environment() -> dict[str, str]:
    """Return the environment variables of a run: one thread, no GPU, the checkout, and the time of the start."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    threads["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"  # not read from OMP
    return {**os.environ, **threads, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), START: str(time.time())}


def evaluations(options: argparse.Namespace, name: str) -> list[Points]:
    """Return the evaluations of each seed of an implementation."""
    return [read(results(options, name, seed)) for seed in options.seeds]


def results(options: argparse.Namespace, name: str, seed: int) -> Path:
    """Return the file with the evaluations of a run."""
    return Path(options.output, options.task, f"{name}_{seed}", "evaluations.jsonl")


def read(path: Path) -> Points:
    """Return the evaluations in a file, which need not exist."""
    return [json.loads(line) for line in path.open()] if path.exists() else []


def reached(task: ScoreTask, points: Points) -> bool:
    """Return whether a run reached the score."""
    return bool(points) and points[-1]["return"] >= task.score


def ended(task: ScoreTask, points: Points) -> bool:
    """Return whether a run reached the score or its last frame."""
    return reached(task, points) or (bool(points) and points[-1]["frames"] >= task.max_frames)


def table(task: ScoreTask, runs: dict[str, list[Points]]) -> str:
    """Return a table with one row per implementation. A run without the score counts as infinitely long."""
    rows = []
    for title, seeds in runs.items():
        found = [points[-1] if reached(task, points) else None for points in seeds]
        count = f"{sum(point is not None for point in found)} of {len(found)}"
        rows.append([title, count, *(column(found, key) for key in ("seconds", "frames"))])
    return markdown_table(HEADER, rows)


def column(found: list[dict[str, float] | None], key: str) -> str:
    """Return the median and all values of a column."""
    values = [float("inf") if point is None else point[key] for point in found]
    return f"{shown(statistics.median(values))} ({', '.join(map(shown, values))})"


def shown(value: float) -> str:
    """Return a number, or "never"."""
    return "never" if value == float("inf") else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())

"""python -m benchmarks.score_per_hour: the return of agents against the CPU time of one core.

    python -m benchmarks.score_per_hour --task halfcheetah --agents td3 td7 td7-quarter --minutes 15 30 --seeds 1 2 3
    python -m benchmarks.score_per_hour --agents sb3-td3 crossq tqc --baselines-python .venv-baselines/bin/python
    python -m benchmarks.score_per_hour --agents td7-author --author ~/TD7
    python -m benchmarks.score_per_hour --variant td7-eighth='td7 --data.updates_per_step 0.125'

Each run is a process with one thread. It stops after the last of `--minutes` of CPU time, which counts imports and
training, but not evaluations. Every minute of CPU time, or as soon as an agent can be evaluated after it, the policy
plays 10 episodes with seeds that no run trains or selects on. The table has the mean return of the last evaluation,
at most a second after each time, and curve.png has all of them. The agents take turns seed by seed. A repeated command
keeps the runs that have ended.
"""

import argparse
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.arguments import interpreter, positive_float, positive_int
from benchmarks.cpu_score_run import RIVALS, TASKS
from benchmarks.records import markdown_table
from benchmarks.time_to_score import Points, conditions, environment, read, record_conditions, results
from td3_lightning.reporting.pictures import write_picture
from td3_lightning.reporting.seed_curves import draw_seed_curves

SHIPPED = {  # the configuration of a task, and flags
    "td3": "{task}.yaml",
    "td7": "td7/{task}.yaml",
    "td7-half": "td7/{task}.yaml --data.updates_per_step 0.5 --collector.warmup_steps 10000",
    "td7-quarter": "td7/{task}.yaml --data.updates_per_step 0.25 --collector.warmup_steps 10000",
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.score_per_hour", description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="halfcheetah")
    parser.add_argument("--agents", nargs="*", choices=[*SHIPPED, *RIVALS], default=["td3", "td7"])
    parser.add_argument(
        "--variant", action="append", default=[], metavar="NAME='AGENT FLAGS'", help="an agent of ours with other flags"
    )
    parser.add_argument("--minutes", nargs="+", type=positive_float, default=[15.0, 30.0, 60.0], help="CPU minutes")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=positive_int, default=1, help="runs at a time; use at most the number of cores")
    parser.add_argument(
        "--baselines-python", type=interpreter, default=sys.executable, help="interpreter that has the other libraries"
    )
    parser.add_argument("--author", type=Path, default=Path("TD7"), help="checkout of https://github.com/sfujim/TD7")
    parser.add_argument("--output", type=Path, default=Path("score_per_hour"), help="folder of the runs")
    options = parser.parse_args(arguments)
    for variant in options.variant:
        if variant.partition("=")[2].split(" ")[0] not in SHIPPED:
            parser.error(f"--variant must be NAME='AGENT FLAGS' with AGENT from {', '.join(SHIPPED)}, got {variant}.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has not ended yet, and print the table."""
    options = parse(arguments)
    agents = commands(options)
    runs = [(name, seed) for seed in options.seeds for name in agents]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda run: train(options, agents[run[0]], *run), runs))
    print(f"{TASKS[options.task].env_id}, mean return of 10 episodes; all seeds after the median")
    print("".join(f"- {line}\n" for line in conditions(options, runs)))
    points = {name: [read(results(options, name, seed)) for seed in options.seeds] for name in agents}
    print(table(points, options.minutes))
    draw(points, TASKS[options.task].env_id, Path(options.output, options.task, "curve.png"))
    if failed := [f"{name}_{seed}" for name, seed in runs if not ended(options, name, seed)]:
        sys.exit(f"Every run must end, got a failure of {', '.join(failed)}. Read output.txt in {options.output}.")
    return 0


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the interpreter and the words after `benchmarks.cpu_score_run` for each agent."""
    chosen = {name: SHIPPED[name] for name in options.agents if name in SHIPPED}
    for variant in options.variant:
        name, _, text = variant.partition("=")
        agent, _, flags = text.partition(" ")
        chosen[name] = f"{SHIPPED[agent]} {flags}"
    ours = {
        name: [sys.executable, "ours", *shlex.split(text.format(task=options.task))] for name, text in chosen.items()
    }
    author = str(options.author.expanduser().absolute())
    rivals = {name: [options.baselines_python, name, author] for name in options.agents if name in RIVALS}
    return ours | rivals


def train(options: argparse.Namespace, command: list[str], name: str, seed: int) -> None:
    """Train once, unless this run has ended before."""
    if ended(options, name, seed):
        return
    path = results(options, name, seed).absolute()
    budget = max(options.minutes) * 60
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    record_conditions(path, options.jobs)
    python, agent, *words = command
    with path.with_name("output.txt").open("w") as output:
        subprocess.run(
            [python, "-m", "benchmarks.cpu_score_run", agent, options.task, str(seed), str(budget), str(path), *words],
            cwd=path.parent,
            env=environment(),
            stdout=output,
            stderr=output,
        )


def ended(options: argparse.Namespace, name: str, seed: int) -> bool:
    """Return whether a run trained for the whole CPU time."""
    points = read(results(options, name, seed))
    return bool(points) and points[-1]["seconds"] >= max(options.minutes) * 60


def table(runs: dict[str, list[Points]], minutes: Sequence[float]) -> str:
    """Return a table with one row per agent: the last return before each time, and the frames at the end."""
    rows = []
    for name, seeds in runs.items():
        columns = [cell([last_return(points, each * 60) for points in seeds]) for each in minutes]
        frames = cell([points[-1]["frames"] if points else None for points in seeds])
        rows.append([name, *columns, frames])
    return markdown_table(("agent", *(f"after {each:g} min" for each in minutes), "frames"), rows)


def draw(runs: dict[str, list[Points]], title: str, path: Path) -> None:
    """Draw the returns of all runs against CPU time, and their mean for each agent."""
    curves = {
        name: [np.array([(point["seconds"] / 60, point["return"]) for point in points]) for points in seeds if points]
        for name, seeds in runs.items()
    }
    shown = {name: seeds for name, seeds in curves.items() if seeds}
    write_picture(path, lambda: draw_seed_curves(shown, "return", title, "minutes of CPU time on one core"))


def last_return(points: Points, seconds: float) -> float | None:
    """Return the return of the last evaluation until a time, or None if the run has no evaluation at or after it.

    A second later counts too, because some agents are evaluated one step after each minute.
    """
    if not points or points[-1]["seconds"] < seconds:
        return None
    before = [point["return"] for point in points if point["seconds"] <= seconds + 1]
    return before[-1] if before else None


def cell(values: list[float | None]) -> str:
    """Return the median and all values. A run that has not come so far has none."""
    known = [value for value in values if value is not None]
    shown = ", ".join("-" if value is None else f"{value:,.0f}" for value in values)
    return f"{statistics.median(known):,.0f} ({shown})" if known else f"- ({shown})"


if __name__ == "__main__":
    sys.exit(main())

"""Run one configuration over random seeds, and report the results."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from td3_lightning.atomic_files import atomic_write
from td3_lightning.errors import RunError
from td3_lightning.reporting.console import echo, table_text
from td3_lightning.reporting.metrics_csv import Points
from td3_lightning.reporting.paths import shown
from td3_lightning.reporting.pictures import write_picture
from td3_lightning.reporting.seed_curves import draw_seed_curves, half_width, mean_curve
from td3_lightning.tuning.pool import Result, locked, number, results_table, run_all, write_csv
from td3_lightning.tuning.run import INTERRUPTED, LocalProcess, Plan, Run, Start, command
from td3_lightning.tuning.space import flags

SETTINGS, CSV = "seeds.json", "seeds.csv"
SCORES = {"last_10": "mean of last 10", "last": "last", "best": "best"}


def run_seeds(plan: Plan, seeds: Sequence[int], start: Start = LocalProcess) -> None:
    """Run the seeds that are not complete, failed ones included. Write and print the results.

    Raises:
        UsageError: The folder holds runs with other settings, or is in use by another sweep.
        RunError: A seed has failed.
    """
    with locked(plan.folder):
        path, now = plan.folder / SETTINGS, plan.settings()
        if path.exists():
            plan.check_unchanged(json.loads(path.read_text()), now)
        else:
            atomic_write(path, lambda file: file.write(json.dumps(now, indent=1).encode()))
        runs = Seeds(plan, seeds)
        run_all(runs, plan, start)
    results = runs.results()
    write_report(results, plan, command("sweep", *plan.words, "--seeds", *map(str, seeds), "--name", plan.name))
    failed = [result for result in results if result.state != "finished"]
    if failed:
        states = ", ".join(f"{result.label} is {result.state}" for result in failed)
        raise RunError(f"{states}. Read log.txt in the folder of the seed. The same command starts it again.")


class Seeds:
    """The seeds of a configuration as a source of runs."""

    def __init__(self, plan: Plan, seeds: Sequence[int]) -> None:
        self._plan = plan
        self._runs = [Run(plan.folder / f"seed_{seed}", flags({"seed_everything": seed})) for seed in seeds]
        self._waiting = [run for run in self._runs if not run.finished]
        self._active: dict[Run, Points] = {}
        self._failed: dict[Run, str] = {}  # the errors of runs that this sweep has given up

    def next(self) -> Run | None:
        """Return the next seed that is not complete."""
        if not self._waiting:
            return None
        run = self._waiting.pop(0)
        self._active[run] = run.evaluations(self._plan.metric)
        return run

    def report(self, run: Run, points: Points) -> bool:
        """Take the evaluations of an active run. No seed is stopped early."""
        self._active[run] = points
        return False

    def finish(self, run: Run, points: Points, error: str) -> None:
        """Write the results so far."""
        del self._active[run]
        if error:
            self._failed[run] = error
        write_csv(self.results(), self._plan.folder / CSV)

    def results(self) -> Sequence[Result]:
        """Return the results of all seeds."""
        return [self._result(run) for run in self._runs]

    def _result(self, run: Run) -> Result:
        record, points, error = run.record, self._active.get(run), self._failed.get(run, "")
        code = record.get("exit_code")
        if points is not None:
            state = "running"
        elif error or code not in (None, 0, *INTERRUPTED):
            state, error = "failed", error or str(record["last_line"])
        elif code == 0:
            state = "finished"
        else:
            state = "unfinished" if run.folder.exists() else "waiting"
        points = run.evaluations(self._plan.metric) if points is None else points
        seconds, clock = record.get("seconds"), self._plan.clock
        return Result(run.label, state, points, self._plan.mode, error=error, seconds=seconds, clock=clock)


def write_report(results: Sequence[Result], plan: Plan, again: str) -> None:
    """Write seeds.csv, seeds.md and seeds.png, and print the statistics and the command that reproduces them."""
    write_csv(results, plan.folder / CSV)
    title, lines = f"{', '.join(map(str, plan.configs))} on {len(results)} seeds", summary(results)
    table = table_text(results_table(results, plan.metric, most=len(results)), width=200)
    text = "\n".join([f"# {title}", "", table, *lines, "", f"    {again}", ""])
    atomic_write(plan.folder / "seeds.md", lambda file: file.write(text.encode()))
    curves = {"seeds": [result.points for result in ended(results)]}
    try:
        if curves["seeds"]:
            clock = results[0].clock
            write_picture(plan.folder / "seeds.png", lambda: draw_seed_curves(curves, plan.metric, title, clock))
    except Exception as error:  # no common steps, a full disk or a setting of Matplotlib
        lines.append(f"Cannot write seeds.png: {error}")
    for line in [table, *lines, f"files      {shown(plan.folder, Path.cwd())}/seeds.*", f"reproduce  {again}"]:
        echo(line)


def ended(results: Sequence[Result]) -> list[Result]:
    """Return the results that count: complete and failed runs with at least one evaluation."""
    return [result for result in results if result.state in ("finished", "failed") and len(result.points)]


def summary(results: Sequence[Result]) -> list[str]:
    """Return the statistics over the seeds that ended, failed ones included, one line each."""
    counted = ended(results)
    if not counted:
        return [f"No result yet: none of {len(results)} seeds has ended with an evaluation."]
    lines = [f"Over {len(counted)} of {len(results)} seeds, mean ± sample standard deviation:"]
    lines += [f"- {title}: {_spread([each.values[name] for each in counted])}" for name, title in SCORES.items()]
    steps, mean, _ = mean_curve([result.points for result in counted])
    if len(steps):
        top = mean.argmax() if counted[0].mode == "max" else mean.argmin()
        lines.append(f"- best of the mean curve, which the TD3 paper reports: {mean[top]:,.2f} at {steps[top]:,.0f}")
    left_out = [result.label for result in results if result not in counted]
    return [*lines, f"- not counted, without a result: {', '.join(left_out)}"] if left_out else lines


def _spread(scores: Sequence[float]) -> str:
    mean = number(float(np.mean(scores)))
    if len(scores) == 1:
        return mean
    return f"{mean} ± {np.std(scores, ddof=1):,.2f}, 95% interval of the mean ± {half_width(scores):,.2f}"

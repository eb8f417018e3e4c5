"""Run one configuration over random seeds."""

import json
from collections.abc import Sequence

from td3_lightning.atomic_files import atomic_write
from td3_lightning.errors import RunError
from td3_lightning.reporting.console import echo, show
from td3_lightning.tuning.plan import Plan, command
from td3_lightning.tuning.pool import locked, run_all
from td3_lightning.tuning.result import Points, Result, results_table, write_csv
from td3_lightning.tuning.run import INTERRUPTED, LocalProcess, Run, Start
from td3_lightning.tuning.space import flags

SETTINGS, CSV = "seeds.json", "seeds.csv"


def run_seeds(plan: Plan, seeds: Sequence[int], start: Start = LocalProcess) -> None:
    """Run the seeds that are not complete, failed ones included. Write and print the results.

    Raises:
        UsageError: The folder holds runs with other settings, or is in use by another sweep.
        RunError: A seed has failed.
    """
    with locked(plan.folder):
        _check_settings(plan)
        runs = Seeds(plan, seeds)
        run_all(runs, plan, start)
    from td3_lightning.tuning.seed_report import write_report  # imports matplotlib

    again = command("sweep", *plan.words, "--seeds", *map(str, seeds), "--name", plan.name)
    results = runs.results()
    show(results_table(results, plan.metric, most=len(results)))
    for line in write_report(results, plan, again):
        echo(line)
    failed = [result for result in results if result.state != "finished"]
    if failed:
        states = ", ".join(f"{result.label} is {result.state}" for result in failed)
        raise RunError(f"{states}. Read log.txt in the folder of the seed. The same command starts it again.")


def _check_settings(plan: Plan) -> None:
    path = plan.folder / SETTINGS
    now = json.loads(json.dumps(plan.identity, default=str))
    if path.exists():
        plan.check_unchanged(json.loads(path.read_text()), now)
    else:
        atomic_write(path, lambda file: file.write(json.dumps(now, indent=1).encode()))


class Seeds:
    """The seeds of a configuration as a source of runs.

    Args:
        plan: Settings of all runs.
        seeds: The seeds.
    """

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
        record, points = run.record, self._active.get(run)
        code, error = record.get("exit_code"), self._failed.get(run, "")
        if points is not None:
            state = "running"
        elif error:
            state = "failed"
        elif code is None or code in INTERRUPTED:
            state = "unfinished" if run.folder.exists() else "waiting"
        else:
            state = "finished" if code == 0 else "failed"
            error = "" if code == 0 else str(record["last_line"])
        points = run.evaluations(self._plan.metric) if points is None else points
        seconds, clock = record.get("seconds"), self._plan.clock
        return Result(run.label, state, points, self._plan.mode, error=error, seconds=seconds, clock=clock)

"""Run several runs at a time, restart those that are killed, and show their results."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from rich.live import Live

from td3_lightning.atomic_files import make_folder
from td3_lightning.reporting.console import echo
from td3_lightning.reporting.run_dir import RunLock
from td3_lightning.tuning.plan import Plan
from td3_lightning.tuning.result import Points, Result, number, results_table, settings_text
from td3_lightning.tuning.run import INTERRUPTED, Process, Run, Start

POLL_INTERVAL = 0.5  # seconds between two checks of the processes
MAX_READ_SHARE = 0.02  # largest share of the time in which metrics are read
MAX_KILLS = 2  # kills without a new evaluation after which a run has failed
ORDER = ("running", "finished", "pruned", "failed", "unfinished", "waiting")
ROWS = 30  # of the table on a terminal


class Source(Protocol):
    """The runs of a sweep: the trials of a study, or seeds."""

    def next(self) -> Run | None:
        """Return the next run, None if none is left."""

    def report(self, run: Run, points: Points) -> bool:
        """Take the evaluations of an active run, (n, 2), and return whether to stop it."""

    def finish(self, run: Run, points: Points, error: str) -> None:
        """Take the final evaluations of a run, (n, 2), and the reason of a failure, "" for none."""

    def results(self) -> Sequence[Result]:
        """Return the results of all runs so far."""


@dataclass
class Active:
    """A run in progress."""

    run: Run
    process: Process
    points: Points = field(default_factory=lambda: np.zeros((0, 2)))
    reached: float = -1.0  # largest step with an evaluation; points may be repeated after a kill
    kills: int = 0  # since the last evaluation
    is_stopped: bool = False
    next_read: float = 0.0

    def read(self, metric: str) -> bool:
        """Read new evaluations, and return whether there are any."""
        now = time.monotonic()
        if now < self.next_read:
            return False
        before, self.points = len(self.points), self.run.evaluations(metric)
        self.next_read = time.monotonic() + (time.monotonic() - now) / MAX_READ_SHARE
        if len(self.points) and self.points[-1, 0] > self.reached:
            self.reached, self.kills = float(self.points[-1, 0]), 0
        return len(self.points) != before

    def failure(self, code: int) -> str:
        """Return the reason of a failure, "" if the run is complete or was stopped on purpose."""
        if code == 0 or self.is_stopped:
            return ""
        if code in INTERRUPTED:
            return f"killed {self.kills} times without a new evaluation (exit code {code})"
        return str(self.run.record.get("last_line", f"exit code {code}"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create and lock the folder of a sweep, so that two sweeps cannot start the same runs.

    Raises:
        UsageError: Another sweep uses the folder.
    """
    make_folder(folder)
    lock = RunLock(folder)
    try:
        yield
    finally:
        lock.release()


def run_all(source: Source, plan: Plan, start: Start) -> None:
    """Run all runs of a source, `plan.workers` at a time.

    Ctrl-C and SIGTERM save and end the active runs. If this process is killed, they save and end themselves.

    Args:
        source: Source of the runs.
        plan: Settings of all runs.
        start: Starts a run.
    """
    active: list[Active] = []
    with Progress(plan.metric) as progress:
        progress.update(source.results())
        try:
            while (has_changed := _fill(active, source, plan, start)) or active:
                for each in list(active):
                    has_changed |= _advance(each, active, source, plan, start)
                if has_changed:
                    progress.update(source.results())
                time.sleep(POLL_INTERVAL)
        except BaseException:
            _stop(active)
            raise


def _fill(active: list[Active], source: Source, plan: Plan, start: Start) -> bool:
    """Start runs until all workers are busy, and return whether one was started."""
    before = len(active)
    while len(active) < plan.workers and (run := source.next()) is not None:
        plan.check_files()
        make_folder(run.folder)
        active.append(Active(run, start(run, plan)))
    return len(active) > before


def _advance(each: Active, active: list[Active], source: Source, plan: Plan, start: Start) -> bool:
    """Check an active run, and return whether its result has changed."""
    code = each.process.poll()
    if code is not None:
        active.remove(each)
        each.next_read = 0.0
    has_changed = each.read(plan.metric)
    if code is None:
        if has_changed and not each.is_stopped and source.report(each.run, each.points):
            each.is_stopped = True
            each.process.stop()
        return has_changed
    each.kills += code in INTERRUPTED
    if code in INTERRUPTED and not each.is_stopped and each.kills < MAX_KILLS:
        plan.check_files()
        each.process = start(each.run, plan)
        active.append(each)
        return has_changed
    source.finish(each.run, each.points, each.failure(code))
    return True


def _stop(active: Sequence[Active]) -> None:
    """Save and end all active runs."""
    for each in active:
        each.process.stop()
    with suppress(OSError):
        echo(f"Saving {len(active)} active runs.")
    waiting = list(active)
    while waiting := [each for each in waiting if each.process.poll() is None]:
        time.sleep(POLL_INTERVAL)
    echo("All runs are saved. The same command continues them.")


class Progress(ExitStack):
    """Show the results of all runs: one table on a terminal, otherwise a line for each change.

    Args:
        metric: Metric of the evaluations.
    """

    def __init__(self, metric: str) -> None:
        super().__init__()
        self._metric = metric
        self._shown: dict[str, tuple[str, float | None]] = {}  # state and env_steps of each run
        self._live = self.enter_context(Live(auto_refresh=False)) if sys.stdout.isatty() else None

    def update(self, results: Sequence[Result]) -> None:
        """Show results that have changed."""
        if self._live is not None:
            ordered = sorted(results, key=lambda result: ORDER.index(result.state))
            self._live.update(results_table(ordered, self._metric, ROWS), refresh=True)
            return
        for result in results:
            now = (result.state, result.values.get("env_steps"))
            before = self._shown.get(result.label)
            self._shown[result.label] = now
            if now != before and result.state != "waiting" and (before is not None or result.state == "running"):
                state = result.status if before is None or before[0] != result.state else ""
                echo(f"{result.label:10} {state:8} {self._numbers(result)}".rstrip())

    def _numbers(self, result: Result) -> str:
        values = result.values
        if not values:
            return settings_text(result.settings)
        numbers = f"{self._metric} {number(values['last'])}, best {number(values['best'])}"
        return f"{values['env_steps']:,.0f} {result.clock}  {numbers}"

"""Run several runs at a time, and restart those that are killed."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from td3_lightning.errors import RunError, UsageError
from td3_lightning.reporting.console import echo
from td3_lightning.tuning.plan import Plan, check_files
from td3_lightning.tuning.progress import Progress
from td3_lightning.tuning.result import Points, Result
from td3_lightning.tuning.run import INTERRUPTED, Claim, LocalProcess, Process, Run, Start

POLL_INTERVAL = 0.5  # seconds between two checks of the processes
MAX_READ_SHARE = 0.02  # largest share of the time in which metrics are read
MAX_KILLS = 2  # kills without a new evaluation after which a run has failed


class Source(Protocol):
    """The runs of a sweep: the trials of a study, or seeds."""

    def next(self) -> tuple[Run, Claim] | None:
        """Return the next run, which no other sweep has; None if none is left."""

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
    claim: Claim
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


def run_all(source: Source, plan: Plan, progress: Progress, start: Start = LocalProcess) -> None:
    """Run all runs of a source, `plan.workers` at a time.

    Ctrl-C and SIGTERM save and end the active runs. If this process is killed, they save and end themselves.

    Args:
        source: Source of the runs.
        plan: Settings of all runs.
        progress: Display of the results.
        start: Starts a run.
    """
    active: list[Active] = []
    try:
        while True:
            has_changed = _fill(active, source, plan, start)
            if not active:
                break
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
    while len(active) < plan.workers and (claimed := source.next()) is not None:
        run, claim = claimed
        try:
            check_files(plan)
        except UsageError:
            claim.release()
            raise
        active.append(Active(run, claim, start(run, plan)))
    return len(active) > before


def _advance(each: Active, active: list[Active], source: Source, plan: Plan, start: Start) -> bool:
    """Check an active run, and return whether its result has changed."""
    try:
        code = each.process.poll()
    except RunError:  # it cannot be started there
        active.remove(each)
        each.claim.release()
        raise
    if code is not None:
        each.next_read = 0.0
    has_changed = each.read(plan.metric)
    if code is None:
        if has_changed and not each.is_stopped and source.report(each.run, each.points):
            each.is_stopped = True
            each.process.stop()
        return has_changed
    if code in INTERRUPTED and not each.is_stopped:
        each.kills += 1
        if each.kills < MAX_KILLS:
            try:
                check_files(plan)
            except UsageError:
                active.remove(each)
                each.claim.release()
                raise
            each.process = start(each.run, plan)
            return has_changed
    active.remove(each)
    source.finish(each.run, each.points, _failure(each, code))
    each.claim.release()
    return True


def _failure(each: Active, code: int) -> str:
    """Return the reason of a failure, "" if the run is complete or was stopped on purpose."""
    if code == 0 or each.is_stopped:
        return ""
    if code in INTERRUPTED:
        return f"killed {each.kills} times without a new evaluation (exit code {code})"
    return str(each.run.record.get("last_line", f"exit code {code}"))


def _stop(active: Sequence[Active]) -> None:
    """Save and end all active runs."""
    for each in active:
        each.process.stop()
    with suppress(OSError):
        echo(f"Saving {len(active)} active runs.")
    waiting = list(active)
    while waiting := [each for each in waiting if each.process.poll() is None]:
        time.sleep(POLL_INTERVAL)
    for each in active:
        each.claim.release()
    echo("All runs are saved. The same command continues them.")

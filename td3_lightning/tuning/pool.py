"""Run several runs at a time, restart those that are killed, and show their results."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.box import MARKDOWN
from rich.markup import escape
from rich.table import Table

from td3_lightning.atomic_files import make_folder
from td3_lightning.reporting.console import echo
from td3_lightning.reporting.metrics_csv import Points, write_rows
from td3_lightning.reporting.run_dir import RunLock
from td3_lightning.tuning.run import INTERRUPTED, Plan, Process, Run, Start

POLL_INTERVAL = 0.5  # seconds between two checks of the processes
MAX_READ_SHARE = 0.02  # largest share of the time in which metrics are read
MAX_KILLS = 2  # kills without a new evaluation after which a run has failed
SCORES = ("steps", "best", "best_at", "last", "last_10")
LAST = 10  # evaluations in the mean at the end of a run


@dataclass(frozen=True)
class Result:
    """Evaluations of a run so far.

    Attributes:
        label: Name of the run, for example "trial 3".
        state: "waiting", "running", "unfinished", "finished", "pruned" or "failed".
        points: Evaluations, (n, 2): env_steps and metric.
        mode: "max" if a larger metric is better, otherwise "min".
        settings: Settings of this run alone.
        error: Reason of a failure.
        seconds: Wall time of all starts.
        clock: Unit of the steps, see `Plan`.
    """

    label: str
    state: str
    points: Points
    mode: str = "max"
    settings: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    seconds: float | None = None
    clock: str = "env_steps"

    @property
    def values(self) -> dict[str, float]:
        """Return the best evaluation and its step, the last evaluation and its step, and the mean of the last 10.

        The mapping is empty before the first evaluation. With fewer than 10 evaluations, all of them are averaged.
        """
        if not len(self.points):
            return {}
        steps, scores = self.points.T
        best = int(scores.argmax() if self.mode == "max" else scores.argmin())
        numbers = (steps[-1], scores[best], steps[best], scores[-1], scores[-LAST:].mean())
        return dict(zip(SCORES, map(float, numbers), strict=True))

    def row(self) -> list[str]:
        """Return the cells of a table: numbers with two decimals, "-" before the first evaluation."""
        scores = [number(self.values.get(name)) for name in ("best", "last", "last_10")]
        status = f"{self.state}: {self.error}" if self.error else self.state
        return [self.label, number(self.values.get("steps")).removesuffix(".00"), *scores, status]


def number(value: float | None) -> str:
    """Return a metric with two decimals, "-" if there is none."""
    return "-" if value is None else f"{value:,.2f}"


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings in one line: their names without the section, and floats with three digits."""
    cells = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in settings.values())
    return ", ".join(f"{name.split('.')[-1]} {cell}" for name, cell in zip(settings, cells, strict=True))


def results_table(results: Sequence[Result], metric: str, most: int = 20) -> Table:
    """Build a table in Markdown with a row for each run, at most `most` rows."""
    title = metric + (f", {most} of {len(results)} runs" if len(results) > most else "")
    table = Table(title=title, box=MARKDOWN)
    for name in ("run", results[0].clock, "best", "last", "last 10"):
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=True)
    has_settings = any(result.settings for result in results)
    table.add_column("state", no_wrap=has_settings, max_width=24 if has_settings else None)
    if has_settings:
        table.add_column("settings", overflow="ellipsis", no_wrap=True)  # the only column that is cut off
    for result in results[:most]:
        table.add_row(*map(escape, [*result.row(), *([settings_text(result.settings)] if has_settings else [])]))
    return table


def write_csv(results: Sequence[Result], path: Path) -> None:
    """Write all results, one row for each run, with a column for each setting."""
    rows = []
    for one in results:
        scores: dict[str, Any] = {name: one.values.get(name) for name in SCORES}
        state = {"run": one.label, "state": one.state, one.clock: scores.pop("steps")}
        rows.append({**state, **scores, "seconds": one.seconds, **one.settings, "error": one.error})
    write_rows(path, rows)


class Source(Protocol):
    """The runs of a sweep: the trials of a study, or seeds. Evaluations are points, (n, 2)."""

    def next(self) -> Run | None: ...  # None if none is left

    def report(self, run: Run, points: Points) -> bool: ...  # take those of an active run; return whether to stop it

    def finish(self, run: Run, points: Points, error: str) -> None: ...  # error: reason of a failure, "" for none

    def results(self) -> Sequence[Result]: ...  # of all runs so far


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

    def is_restarted(self, code: int) -> bool:
        """Count a kill, and return whether to start the run again."""
        self.kills += code in INTERRUPTED
        return code in INTERRUPTED and not self.is_stopped and self.kills < MAX_KILLS

    def failure(self, code: int) -> str:
        """Return the reason of a failure, "" if the run is complete or was stopped on purpose."""
        if code == 0 or self.is_stopped:
            return ""
        if code in INTERRUPTED:
            return f"killed {self.kills} times without a new evaluation (exit code {code})"
        return str(self.run.record.get("last_line", f"exit code {code}"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create and lock the folder of a sweep. Raise `UsageError` if another sweep uses it."""
    make_folder(folder)
    lock = RunLock(folder)
    try:
        yield
    finally:
        lock.release()


def run_all(source: Source, plan: Plan, start: Start) -> None:
    """Run all runs of a source, `plan.workers` at a time, and print a line for each change of a result.

    Ctrl-C and SIGTERM save and end the active runs. If this process is killed, they save and end themselves.
    """
    active: list[Active] = []
    rows = {result.label: result.row() for result in source.results()}  # of an earlier start, which are not printed
    try:
        while True:
            before = len(active)
            while len(active) < plan.workers and (run := source.next()) is not None:
                plan.check_files()
                make_folder(run.folder)
                active.append(Active(run, start(run, plan)))
            if not active:
                return
            changed = [_advance(each, active, source, plan, start) for each in list(active)]
            if any(changed) or len(active) > before:
                print_changes(source.results(), rows, plan.metric)
            time.sleep(POLL_INTERVAL)
    except BaseException:
        _stop(active)
        raise


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
    elif each.is_restarted(code):
        plan.check_files()
        each.process = start(each.run, plan)
        active.append(each)
    else:
        source.finish(each.run, each.points, each.failure(code))
        return True
    return has_changed


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


def print_changes(results: Sequence[Result], rows: dict[str, list[str]], metric: str) -> None:
    """Print a line for each result whose row differs from that in `rows`, and update `rows`."""
    for result in results:
        if rows.get(result.label) != result.row() and result.state != "waiting":
            values = result.values
            numbers = f"{metric} {number(values['last'])}, best {number(values['best'])}" if values else ""
            steps = f"{values['steps']:,.0f} {result.clock}  " if values else settings_text(result.settings)
            echo(f"{result.label:10} {result.row()[-1]:8} {steps}{numbers}".rstrip())
        rows[result.label] = result.row()

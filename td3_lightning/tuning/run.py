"""The common settings of the runs of a sweep, and one run: its folder and its process."""

import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from td3_lightning.atomic_files import atomic_write
from td3_lightning.errors import UsageError
from td3_lightning.reporting.metrics_csv import Points, read_metrics
from td3_lightning.tuning.node import start_fit

# Exit codes of a run that a signal has ended: by default, and after it has saved a checkpoint.
INTERRUPTED = {-number for number in signal.Signals} | {75, 129, 130, 143}


@dataclass(frozen=True)
class Plan:
    """Common settings of the runs of a sweep.

    Attributes:
        name: Name of the sweep.
        folder: Folder of the sweep, `lightning_logs/NAME`.
        configs: Configuration files, as the user wrote them.
        contents: Their contents.
        flags: Further flags of `fit`.
        metric: Column of `metrics.csv` that rates a run.
        mode: "max" if a larger metric is better, otherwise "min".
        workers: Number of simultaneous runs.
        clock: Unit of the steps of an evaluation: "env_steps", or "updates" for offline runs.
        read: Reads a configuration file again, given its name in `configs`; None never does.
    """

    name: str
    folder: Path
    configs: Sequence[str]
    contents: Sequence[Mapping[str, Any]]
    flags: Sequence[str]
    metric: str = "eval/return_mean"
    mode: str = "max"
    workers: int = 1
    clock: str = "env_steps"
    read: Callable[[str], Mapping[str, Any]] | None = None

    @property
    def words(self) -> list[str]:
        """Return the configuration files and flags as words of a command."""
        return [*(word for name in self.configs for word in ("--config", name)), *self.flags]

    @property
    def threads(self) -> int:
        """Return the threads of each run: the cores divided by the workers, unless OMP_NUM_THREADS is set."""
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return given_threads() or max(usable // self.workers, 1)

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return the settings that must not change between two starts of the sweep, as JSON represents them."""
        own = {"config": list(self.contents), "flags": list(self.flags), "metric": self.metric, "mode": self.mode}
        return dict(json.loads(json.dumps(own | others, default=str)))

    def check_files(self) -> None:
        """Raise `UsageError` if a configuration file has been edited since the start of the sweep."""
        for name, content in zip(self.configs, self.contents, strict=True):
            if self.read is not None and self.read(name) != content:
                raise UsageError(
                    f"{name} must be as at the start of the sweep, got other settings. Undo the change and repeat the "
                    "command, or use another --name for the new settings."
                )

    def check_unchanged(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Raise `UsageError` if a sweep is started again with other settings than before."""
        for name, value in now.items():
            if before.get(name) != value:
                raise UsageError(
                    f"{name} must be as in the earlier runs of {self.folder}, got another value. Undo the change, or "
                    "use another --name."
                )


def command(*words: str) -> str:
    """Return a command line of this package, as a user writes it."""
    return shlex.join(["td3-lightning", *words])


def given_threads() -> int | None:
    """Return OMP_NUM_THREADS, or None if it is not a positive integer."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else None


@dataclass(frozen=True)
class Run:
    """A run of `fit` in its own folder.

    Attributes:
        folder: Folder of the run, which has one `version_N` for each start without a checkpoint.
        flags: Settings of this run alone.
    """

    folder: Path
    flags: tuple[str, ...]

    @property
    def label(self) -> str:
        """Return the name for tables, for example "trial 3"."""
        return self.folder.name.replace("_", " ")

    @property
    def record(self) -> dict[str, Any]:
        """Return `seconds` of all starts, `exit_code` and `last_line`; empty before the first start has ended."""
        path = self.folder / "run.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    @property
    def finished(self) -> bool:
        """Return whether the run is complete."""
        return self.record.get("exit_code") == 0

    def evaluations(self, metric: str) -> Points:
        """Return a metric of all versions, (n, 2), without values that are not finite.

        A later version replaces the steps that it has repeated.
        """
        merged: dict[float, float] = {}
        found = {path.parent.name.removeprefix("version_"): path for path in self.folder.glob("version_*/metrics.csv")}
        for number in sorted((name for name in found if name.isdecimal()), key=int):  # another name is a user's copy
            points = read_metrics(found[number], [metric])[metric]
            if len(points):
                merged = {step: value for step, value in merged.items() if step < points[0, 0]}
                merged.update(points.tolist())
        rows = [row for row in sorted(merged.items()) if np.isfinite(row[1])]
        return np.array(rows, dtype=np.float64).reshape(-1, 2)

    def words(self, plan: Plan) -> list[str]:
        """Return the words of the command that starts the run."""
        return ["fit", *plan.words, *self.flags, "--name", f"{plan.name}/{self.folder.name}"]

    def end(self, words: Sequence[str], code: int, seconds: float) -> None:
        """Write `run.json` after a start with these words of the command has ended, given its wall time."""
        lines = [line for line in (self.folder / "log.txt").read_text(errors="replace").splitlines() if line.strip()]
        record = {
            "command": command(*words),
            "exit_code": code,
            "seconds": self.record.get("seconds", 0.0) + seconds,
            "last_line": lines[-1] if lines else "",
        }
        atomic_write(self.folder / "run.json", lambda file: file.write(json.dumps(record, indent=1).encode()))


class Process(Protocol):
    """A run in progress, on this machine or on another one."""

    def poll(self) -> int | None:
        """Return the exit code, or None while the run is active. Record the end of the run in `run.json`."""

    def stop(self) -> None:
        """Stop the run, which first saves a checkpoint."""


Start = Callable[[Run, Plan], Process]  # starts a run from its last checkpoint if it has one


class LocalProcess:
    """Train a run in a process of this machine, from its last checkpoint if it has one."""

    def __init__(self, run: Run, plan: Plan) -> None:
        self._run, self._words, self._start = run, run.words(plan), time.monotonic()
        self._process = start_fit(self._words, run.folder, plan.threads)

    def poll(self) -> int | None:
        """See `Process`."""
        code = self._process.poll()
        if code is not None:
            self._run.end(self._words, code, time.monotonic() - self._start)
        return code

    def stop(self) -> None:
        """See `Process`."""
        self._process.terminate()

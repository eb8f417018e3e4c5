"""One run of a sweep: its folder and its process."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from td3_lightning.atomic_files import atomic_write
from td3_lightning.reporting.metrics_csv import read_metrics
from td3_lightning.tuning.node import start_fit
from td3_lightning.tuning.plan import Plan, command
from td3_lightning.tuning.result import Points

# Exit codes of a run that a signal has ended: by default, and after it has saved a checkpoint.
INTERRUPTED = {-number for number in signal.Signals} | {75, 129, 130, 143}


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
                merged.update({float(step): float(value) for step, value in points})
        finite = {step: value for step, value in merged.items() if np.isfinite(value)}
        return np.array(sorted(finite.items()), dtype=np.float64).reshape(-1, 2)

    def log_lines(self) -> list[str]:
        """Return the lines that the run has printed, without empty ones."""
        path = self.folder / "log.txt"
        return [line for line in path.read_text(errors="replace").splitlines() if line.strip()] if path.exists() else []

    def words(self, plan: Plan) -> list[str]:
        """Return the words of the command that starts the run."""
        return ["fit", *plan.words, *self.flags, "--name", f"{plan.name}/{self.folder.name}"]

    def end(self, words: Sequence[str], code: int, seconds: float) -> None:
        """Write `run.json` after a start has ended.

        Args:
            words: Words of the command.
            code: Exit code.
            seconds: Wall time of this start.
        """
        record = {
            "command": command(*words),
            "exit_code": code,
            "seconds": self.record.get("seconds", 0.0) + seconds,
            "last_line": next(reversed(self.log_lines()), ""),
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
    """Train a run in a process of this machine, from its last checkpoint if it has one.

    Args:
        run: Run to start.
        plan: Settings of all runs.
    """

    def __init__(self, run: Run, plan: Plan) -> None:
        self._run, self._words, self._start = run, run.words(plan), time.monotonic()
        self._process = start_fit(self._words, run.folder, plan.threads)

    def poll(self) -> int | None:
        """Return the exit code, or None while the run is active. Record the end of the run in `run.json`."""
        code = self._process.poll()
        if code is not None:
            self._run.end(self._words, code, time.monotonic() - self._start)
        return code

    def stop(self) -> None:
        """Stop the run, which first saves a checkpoint."""
        self._process.terminate()

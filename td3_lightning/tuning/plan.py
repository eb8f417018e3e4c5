"""Common settings of the runs of a sweep."""

import contextlib
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from td3_lightning.errors import UsageError


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
        seed: Random seed of the runs of a study.
        files: Paths of the configuration files.
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
    seed: int = 0
    files: Sequence[Path] = ()

    @property
    def words(self) -> list[str]:
        """Return the configuration files and flags as words of a command."""
        return [*(word for name in self.configs for word in ("--config", name)), *self.flags]

    @property
    def threads(self) -> int:
        """Return the threads of each run: the cores divided by the workers, unless OMP_NUM_THREADS is set."""
        return given_threads() or max(cores() // self.workers, 1)

    @property
    def identity(self) -> dict[str, Any]:
        """Return the settings that must not change between two starts of the sweep."""
        return {"config": list(self.contents), "flags": list(self.flags), "metric": self.metric, "mode": self.mode}

    def check_files(self) -> None:
        """Raise `UsageError` if a configuration file has been edited since the start of the sweep."""
        for file, content in zip(self.files, self.contents, strict=False):
            if yaml.safe_load(file.read_text(encoding="utf-8")) != content:
                raise UsageError(
                    f"{file} must be as at the start of the sweep, got other settings. Undo the change and repeat the "
                    "command, or use another --name for the new settings."
                )

    def check_unchanged(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Raise `UsageError` if a sweep is started again with other settings than before."""
        for name, value in now.items():
            if (old := before.get(name)) != value:
                got = "other settings" if name in ("config", "space") else f"{_text(value)} instead of {_text(old)}"
                raise UsageError(
                    f"{name} must be as in the earlier runs of {self.folder}, got {got}. Undo the change, or use "
                    "another --name."
                )


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else shlex.join(value or ())) or "none"


def command(*words: str) -> str:
    """Return a command line of this package, as a user writes it."""
    return shlex.join(["python", "-m", "td3_lightning", *words])


def given_threads() -> int | None:
    """Return OMP_NUM_THREADS, or None if it is not a positive integer."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else None


def cores() -> int:
    """Return the number of cores that this process may use, in a container those of its quota."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(usable, cpu_quota())))


def cpu_quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Return the number of CPUs that a control group (version 2) allows, infinity without a limit."""
    with contextlib.suppress(OSError, ValueError):  # "quota period", or "max period"
        quota, period = map(int, file.read_text().split())
        return quota / period
    return math.inf

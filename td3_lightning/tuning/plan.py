"""Common settings of the runs of a sweep."""

import contextlib
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import yaml

from td3_lightning.errors import OTHER_YAML_ERRORS, UsageError, one_line


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


def command(*words: str) -> str:
    """Return a command line of this package, as a user writes it."""
    return shlex.join(["python", "-m", "td3_lightning", *words])


def check_files(plan: Plan) -> None:
    """Raise `UsageError` if a configuration file has been edited since the start of the sweep."""
    for file, content in zip(plan.files, plan.contents, strict=False):
        try:
            now = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError, *OTHER_YAML_ERRORS) as error:
            raise UsageError(
                f"{file} must be as at the start of the sweep, got an error ({one_line(error)}). Restore it."
            ) from error
        if now != content:
            raise UsageError(
                f"{file} must be as at the start of the sweep, got other settings. Undo the change and repeat the "
                "command, or use another --name for the new settings."
            )


def check_unchanged(before: Mapping[str, Any], now: Mapping[str, Any], plan: Plan) -> None:
    """Raise `UsageError` if a sweep is started again with other settings than before."""
    for name, value in now.items():
        if (old := before.get(name)) != value:
            raise UsageError(
                f"{name} must be as in the earlier runs of {plan.folder}, got {_change(old, value)}. Undo the change, "
                "or use another --name."
            )


def _change(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return f"a change of {', '.join(changed)}"
    if all(isinstance(each, dict) for each in [*old, *new]):  # the contents of files
        return "a file with other settings"
    before, now = (each if isinstance(each, str) else shlex.join(each) for each in (old, new))
    return f"{now or 'none'} instead of {before or 'none'}"


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Create or replace a file that sweeps on other machines may replace at the same time.

    Args:
        path: The file. Missing folders are created.
        write: Function that writes the content to an open file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            write(file)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def given_threads() -> int | None:
    """Return OMP_NUM_THREADS, or None if it is not a positive integer."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else None


def cores() -> int:
    """Return the number of cores that this process may use, in a container those of its quota."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(usable, cpu_quota())))


def cpu_quota(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the number of CPUs that a control group allows, infinity without a limit.

    Args:
        cgroup: Folder of the group, in a container that of the container.
    """
    with contextlib.suppress(OSError, ValueError):  # version 2: "quota period", or "max period"
        quota, period = (cgroup / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):  # version 1: -1 without a limit
        quota, period = ((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf

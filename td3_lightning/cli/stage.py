"""Find the run from which a training stage starts by its name."""

import re
from pathlib import Path

from td3_lightning.errors import UsageError, refuse
from td3_lightning.reporting.paths import expand, is_below
from td3_lightning.reporting.run_dir import newest_last

RUNS = "lightning_logs"  # folder of all runs
LAST = "last"
PREFIX = "last:"  # followed by the name of a run


def runs_folder(default_root_dir: str | None) -> Path:
    """Return the folder of all runs."""
    return Path(expand("trainer.default_root_dir", default_root_dir or "."), RUNS)


def check_name(name: str) -> None:
    """Raise `UsageError` if the folder of a run would be outside the folder of all runs."""
    if not is_below(name):
        raise refuse("name", "a name below lightning_logs", name, "Use --trainer.default_root_dir for another folder.")


def is_name(path: str | None) -> bool:
    """Return whether a `ckpt_path` is the name of a run instead of a file."""
    return path is not None and (path == LAST or path.startswith(PREFIX))


def find_checkpoint(path: str, runs: Path, name: str) -> str:
    """Return the file that a `ckpt_path` refers to.

    Args:
        path: A file, "last", or "last:" followed by the name of a run.
        runs: Folder of all runs.
        name: Name of the new run. "last" is the newest checkpoint of the runs with this name.

    Raises:
        UsageError: No run has this name.
    """
    if path == LAST:
        return str(newest_last(runs, name))
    if not is_name(path):
        return path
    previous = path.removeprefix(PREFIX)
    if not previous.strip("./") or not is_below(previous):
        constraint = f"{PREFIX} and the name of a run below {runs.name}"
        raise refuse("ckpt_path", constraint, path, f"Use {PREFIX}lander, for example.")
    return str(newest_version(runs / previous))


def newest_version(folder: Path) -> Path:
    """Return the last.ckpt of the highest version that has one.

    Raises:
        UsageError: No version has a last.ckpt.
    """
    paths = ((path, path.parent.parent.name) for path in folder.glob("version_*/checkpoints/last.ckpt"))
    found = [(int(version[1]), path) for path, name in paths if (version := re.fullmatch(r"version_(\d+)", name))]
    if not found:
        name = folder.name or "NAME"
        raise UsageError(
            f"{PREFIX}{name} requires a run in {folder}, got none with a last.ckpt. Train that run first (fit --config "
            f"{name}.yaml), or use another checkpoint with --ckpt_path and --data.empty_replay true."
        )
    return max(found)[1]

"""Find the run from which a training stage starts by its name."""

from pathlib import Path

from td3_lightning.errors import UsageError
from td3_lightning.reporting.paths import expand
from td3_lightning.reporting.run_dir import newest_last, run_dir_of

RUNS = "lightning_logs"  # folder of all runs
LAST = "last"
PREFIX = "last:"  # followed by the name of a run


def runs_folder(default_root_dir: str | None) -> Path:
    """Return the folder of all runs."""
    return Path(expand("trainer.default_root_dir", default_root_dir or "."), RUNS)


def is_name(path: str | None) -> bool:
    """Return whether a `ckpt_path` is the name of a run instead of a file."""
    return path is not None and (path == LAST or path.startswith(PREFIX))


def find_checkpoint(path: str, runs: Path, name: str) -> str:
    """Return the file that a `ckpt_path` refers to: a file, "last" of the run's own name, or "last:" and another name.

    Raises:
        UsageError: No run has this name.
    """
    return str(newest_last(runs, name if path == LAST else path.removeprefix(PREFIX))) if is_name(path) else path


def check_own_stage(checkpoint: Path, name: str, files: list[Path]) -> None:
    """Raise `UsageError` if a file starts a new stage and the checkpoint belongs to a run with another name."""
    if not has_name(run_dir_of(checkpoint), name):
        raise UsageError(
            f"{' and '.join(map(str, files))} starts a new stage, so ckpt_path must belong to a run named {name}, got "
            f"{checkpoint}. Use --data.empty_replay true to start the stage from it, or false to resume that run."
        )


def has_name(run: Path | None, name: str) -> bool:
    """Return whether a run folder belongs to a run with this name. The folder of all runs may have been moved."""
    parts = (RUNS, *Path(name).parts)
    return run is not None and run.parent.parts[-len(parts) :] == parts

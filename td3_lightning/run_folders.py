"""Where runs lie: lightning_logs/name/version_N, with their checkpoints in `checkpoints`."""

from pathlib import Path

from td3_lightning.errors import UsageError


def run_of(checkpoint: Path) -> Path | None:
    """The folder of the run that a checkpoint lies in; None if it was copied away."""
    folder = checkpoint.absolute().parent
    in_a_run = folder.name == "checkpoints" and (folder.parent / "config.yaml").is_file()
    return folder.parent if in_a_run else None


def newest_last(runs: Path, name: str) -> Path:
    """The last.ckpt of the run of a name that was saved last; raises `UsageError` if there is none."""
    found = list((runs / name).glob("*/checkpoints/last.ckpt"))
    if not found:
        raise UsageError(
            f"--ckpt_path last is the newest run's last.ckpt, but {runs / name} has none; leave it out to begin a run."
        )
    return max(found, key=lambda path: path.stat().st_mtime)

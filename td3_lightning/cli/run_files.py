"""Files of a run, collected from its Trainer."""

from pathlib import Path

import lightning as L

from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.last import LastCheckpoint
from td3_lightning.cli.save_config import SaveConfig
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.summary import RunSummary


def run_summary(trainer: L.Trainer, start: Path) -> RunSummary:
    """Return the summary of a run.

    Args:
        trainer: Trainer of the run.
        start: Working directory of the command.
    """
    folder = next((Path(each.log_dir) for each in trainer.loggers if isinstance(each, RunLogger)), None)
    keepers = trainer.checkpoint_callbacks
    last = next((_path(each.last_model_path) for each in keepers if isinstance(each, LastCheckpoint)), None)
    best = next((each for each in keepers if isinstance(each, BestCheckpoint)), None)
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it without a type
    with_config = any(each.is_required for each in callbacks if isinstance(each, SaveConfig))
    if best is None:
        return RunSummary(folder, last, None, start, with_config=with_config)
    path = _path(best.best_model_path)
    score = None if best.best_model_score is None else float(best.best_model_score)
    return RunSummary(folder, last, path, start, str(best.monitor), best.mode, with_config, score)


def _path(text: str) -> Path | None:
    """Return the path of a checkpoint. None if it was not written, for example because the disk is full."""
    return Path(text) if text and Path(text).exists() else None

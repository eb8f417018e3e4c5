"""Files of a run, collected from its Trainer."""

from pathlib import Path

import lightning as L

from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.last import LastCheckpoint
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
    if best is None:
        return RunSummary(folder, last, None, start)
    return RunSummary(folder, last, _path(best.best_model_path), start, str(best.monitor), best.mode)


def _path(text: str) -> Path | None:
    return Path(text) if text else None

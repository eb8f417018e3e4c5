"""Callback that truncates the logs to the checkpoint's position on resume."""

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_only

from td3_lightning.reporting.logger import RunLogger, check_log_dirs_differ
from td3_lightning.reporting.paths import check_links
from td3_lightning.reporting.run_dir import LockingCallback, RunLock, continues_in, run_exists_error


class LogRollback(LockingCallback):
    """Log every metric at the clock of the agent, and truncate the logs to the checkpoint's position on resume.

    Rows that a killed process logged after its last checkpoint are removed, so no row appears twice. A new run in the
    folder of another run is refused, and so is a run in a folder that another process uses.
    """

    def __init__(self) -> None:
        self._loggers: list[RunLogger] = []
        self._position: dict[str, Any] = {}

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        """Find the RunLogger, set its clock, and lock its folder.

        The lock comes before the checkpoint is read, because a process that is ending may still write a newer one.
        """
        self._loggers = [logger for logger in trainer.loggers if isinstance(logger, RunLogger)][:1]
        if stage == "fit":
            for logger in self._loggers:
                logger.axis, logger.clock = pl_module.clock_name, lambda: pl_module.clock
            self._enter(trainer)

    @rank_zero_only
    def _enter(self, trainer: L.Trainer) -> None:
        for logger in self._loggers:
            check_links(Path(logger.log_dir))
            logger.reserve(Path(logger.log_dir))
            self._lock = RunLock(Path(logger.log_dir))
            check_log_dirs_differ(logger, trainer.loggers)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the log."""
        return {"position": self._loggers[0].position()} if self._loggers else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Note the position of the log in the checkpoint."""
        self._position = state_dict.get("position", {})

    @rank_zero_only
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Truncate the log to the checkpoint's position. Refuse to continue the log of another run."""
        for logger in self._loggers:
            if not logger.metrics.rows or logger.has_logged:
                return
            folder = Path(logger.log_dir)
            if not continues_in(trainer, folder):
                raise run_exists_error(folder)
            logger.truncate_to(self._position)

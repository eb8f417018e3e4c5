"""Callback that truncates the logs to the checkpoint's position on resume."""

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_only

from td3_lightning.reporting.logger import RunLogger, check_log_dirs_differ
from td3_lightning.reporting.run_dir import LockingCallback, RunLock, continues_in, run_exists_error


class LogRollback(LockingCallback):
    """Has all be logged at its env_steps, and a run that goes on in its own folder begin where it was saved.

    What a killed process logged after that is taken away, so that no row is there twice. A new run is refused in the
    folder of another, and every run in one that another process works in.
    """

    def __init__(self) -> None:
        self._loggers: list[RunLogger] = []
        self._position: dict[str, Any] = {}

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        """Finds the RunLogger, if there is one, gives it its clock, and enters its folder.

        This comes before the checkpoint is read: a process that is ending there may be writing a newer one.
        """
        self._loggers = [logger for logger in trainer.loggers if isinstance(logger, RunLogger)][:1]
        if stage == "fit":
            for logger in self._loggers:
                logger.clock = lambda: int(pl_module.env_steps)
            self._enter(trainer)

    @rank_zero_only
    def _enter(self, trainer: L.Trainer) -> None:
        for logger in self._loggers:
            logger.reserve(Path(logger.log_dir))
            self._lock = RunLock(Path(logger.log_dir))
            check_log_dirs_differ(logger, trainer.loggers)

    def state_dict(self) -> dict[str, Any]:
        """How far the log is."""
        return {"position": self._loggers[0].position()} if self._loggers else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Notes how far it was."""
        self._position = state_dict.get("position", {})

    @rank_zero_only
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Cuts the log back, or refuses to go on with another run's."""
        for logger in self._loggers:
            if not logger.metrics.rows or logger.has_logged:
                return
            folder = Path(logger.log_dir)
            if not continues_in(trainer, folder):
                raise run_exists_error(folder)
            logger.truncate_to(self._position)

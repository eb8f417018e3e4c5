"""Log a run to TensorBoard and to `metrics.csv`.

`_get_next_version` and `_experiment` are private names of Lightning 2.6.
"""

import contextlib
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn
from lightning_utilities.core.rank_zero import WarningCache

from td3_lightning.atomic_files import sync
from td3_lightning.errors import UsageError, refuse
from td3_lightning.reporting.metrics_csv import CLOCKS, MetricsFile, column_of
from td3_lightning.reporting.paths import absolute, is_below

WRITE_ERRORS = (OSError, UnicodeError)  # the second if the file system cannot encode the name of the folder


class RunLogger(TensorBoardLogger):
    """Write TensorBoard events and `metrics.csv` to the folder `save_dir/name/version_N`.

    Each call of `log_metrics` writes one row. An existing `metrics.csv` is continued.

    Args:
        save_dir: Folder of all runs. A relative path starts at the current working directory.
        name: Name of the experiment, a folder in `save_dir`.
        version: Number or name of the run. None reserves the next free number by creating its folder, which is
            removed if nothing is logged.

    Raises:
        UsageError: The folder would be outside of `save_dir`.
    """

    def __init__(
        self, save_dir: str = "lightning_logs", name: str = "default", version: int | str | None = None
    ) -> None:
        folder = str(absolute("save_dir", save_dir))
        for setting, value in (("name", name), ("version", version)):
            if isinstance(value, str) and not is_below(value):
                raise refuse(setting, "a folder below save_dir", value, "Use save_dir for another folder.")
        super().__init__(folder, name=name, version=version, default_hp_metric=False)
        self.has_logged = False  # in this process
        self.axis = CLOCKS[0]  # name of the clock, and of the first column of metrics.csv
        self.clock: Callable[[], int] | None = None  # returns the clock during training
        self._warnings = WarningCache()
        self._created: list[Path] = []  # folders that this process created, the innermost first

    def _get_next_version(self) -> int:
        """Reserve a free version number. Other runs may start at the same time."""
        number = super()._get_next_version()
        while not self.reserve(Path(self.root_dir, f"version_{number}")):
            number += 1
        return number

    def reserve(self, folder: Path) -> bool:
        """Create a folder on rank 0. Return False if it exists already, for example created by another run."""
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            rank_zero_only(folder.mkdir)(parents=True)
        except FileExistsError:
            return False
        except OSError:  # reported when the first metric is logged
            return True
        self._created += missing
        return True

    @property
    def log_dir(self) -> str:
        """Return the run folder. Unlike TensorBoardLogger, keep "$", as Lightning does for the checkpoints."""
        return os.path.join(self.root_dir, self.version if isinstance(self.version, str) else f"version_{self.version}")

    @cached_property
    def metrics(self) -> MetricsFile:
        """Return the `metrics.csv` of the run."""
        return MetricsFile(Path(self.log_dir, "metrics.csv"))

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """Return TensorBoard's writer after the first metric has been logged.

        Raises:
            AttributeError: No metric has been logged. Lightning reads this property before it has validated the run,
                and ignores the error. A writer would create the folder of a run that may not start.
        """
        if not self.has_logged:
            raise AttributeError(
                "experiment requires a logged metric. Call log_metrics before you use TensorBoard's writer."
            )
        return super().experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log metrics. If the disk rejects them, warn once and continue.

        Args:
            metrics: Names and values. The axis is skipped, and so are `env_steps` in a run without environment steps.
            step: Value of the axis. Ignored during training, because Lightning counts optimizer steps.
        """
        step = self.clock() if self.clock else step
        self.has_logged = True
        skipped = (CLOCKS[0], self.axis)
        values = {column_of(name): float(value) for name, value in metrics.items() if name not in skipped}
        with self._warn_on_disk_error():
            self.metrics.append({self.axis: step, **values})
        with self._warn_on_disk_error():
            super().log_metrics(values, step)

    @contextlib.contextmanager
    def _warn_on_disk_error(self) -> Iterator[None]:
        """Convert disk errors to one warning."""
        try:
            yield
        except (OSError, ValueError) as error:
            # Lightning wraps every error of TensorBoard in a ValueError.
            reason = error if isinstance(error, WRITE_ERRORS) else error.__cause__
            if not isinstance(reason, WRITE_ERRORS):
                raise
            self._warnings.warn(f"Cannot write part of the log in {self.log_dir}: {reason}. The run continues.")

    def position(self) -> dict[str, Any]:
        """Return the size of the log on disk: rows of `metrics.csv` and bytes of each event file."""
        if not self.metrics.rows:
            return {"rows": 0, "events": {}}
        with self._warn_on_disk_error():
            events: Any = self._experiment  # untyped in older releases of torch
            if events is not None:
                events.flush()
            for path in (self.metrics.path, *self._events()):
                sync(path)
        return {"rows": self.metrics.rows, "events": {path.name: path.stat().st_size for path in self._events()}}

    @rank_zero_only
    def truncate_to(self, position: Mapping[str, Any]) -> None:
        """Delete what a killed process logged after a position."""
        missing = position["rows"] - self.metrics.rows
        if missing > 0:
            rank_zero_warn(f"{self.metrics.path} lacks {missing} rows that existed when the checkpoint was saved.")
        self.metrics.truncate(position["rows"])
        for path in self._events():
            if path.name in position["events"]:
                os.truncate(path, min(position["events"][path.name], path.stat().st_size))
            else:
                path.unlink()

    def _events(self) -> list[Path]:
        return sorted(Path(self.log_dir).glob("events.out.tfevents.*"))

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Store the hyperparameters, names and values, for `hparams.yaml`."""
        self.hparams.update(vars(params) if isinstance(params, Namespace) else params)

    @rank_zero_only
    def save(self) -> None:
        """Flush the events and write `hparams.yaml` if something has been logged. Rows are flushed at once."""
        if self.has_logged:
            with self._warn_on_disk_error():
                super().save()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the event file. Remove the folder if nothing was logged."""
        with self._warn_on_disk_error():
            super().finalize(status)
        if not self.has_logged:
            with contextlib.suppress(OSError):  # the folder is not empty
                for folder in self._created:
                    folder.rmdir()


def check_log_dirs_differ(own: RunLogger, loggers: Sequence[Logger]) -> None:
    """Raise `UsageError` if another logger writes to the run folder. Both could write a metrics.csv."""
    for other in loggers:
        folder = None if other is own else getattr(other, "log_dir", None)
        if folder is not None and Path(folder).resolve() == Path(own.log_dir).resolve():
            raise UsageError(
                f"trainer.logger must write outside the run's folder, got {type(other).__name__} with {folder}. "
                "Use another save_dir or name for it."
            )

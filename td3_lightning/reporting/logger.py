"""Logger of a run: TensorBoard events and metrics.csv."""

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
from td3_lightning.errors import UsageError
from td3_lightning.reporting.columns import MOST_COLUMNS, admitted
from td3_lightning.reporting.metrics_csv import AXIS, MetricsFile
from td3_lightning.reporting.paths import absolute

WRITE_ERRORS = (OSError, UnicodeError)  # the latter if the file system cannot encode the folder's name


class RunLogger(TensorBoardLogger):
    """Writes TensorBoard's events and `metrics.csv`, a row for each call, in one folder.

    The folder is `save_dir/name/version_N`. If it holds a `metrics.csv` already, that is continued.

    Args:
        save_dir: Folder of all runs. A relative path starts at the working directory of this call.
        name: Folder of the runs of one kind.
        version: Number or name of this run; None takes the next free number, with an empty folder that is gone again
            if nothing is logged.
    """

    def __init__(
        self, save_dir: str = "lightning_logs", name: str = "default", version: int | str | None = None
    ) -> None:
        folder = str(absolute("save_dir", save_dir))
        super().__init__(folder, name=name, version=version, default_hp_metric=False)
        self.began = False  # this process has logged something
        self.clock: Callable[[], int] | None = None  # env_steps in training
        self._warnings = WarningCache()
        self._is_full = False  # metrics.csv had no room for a new column
        self._made: list[Path] = []  # folders that this process made, the innermost first

    def _get_next_version(self) -> int:
        """A free number, which is taken at once: another run may begin at the same time."""
        number = super()._get_next_version()
        while not self.take(Path(self.root_dir, f"version_{number}")):
            number += 1
        return number

    def take(self, folder: Path) -> bool:
        """Has rank 0 make a folder, if there is none; false if there is, as another run may have been faster."""
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            rank_zero_only(folder.mkdir)(parents=True)
        except FileExistsError:
            return False
        except OSError:  # said when something is logged
            return True
        self._made += missing
        return True

    @property
    def log_dir(self) -> str:
        """The run's folder, without TensorBoardLogger's expansion of "$": the checkpoints' folder has none either."""
        return os.path.join(self.root_dir, self.version if isinstance(self.version, str) else f"version_{self.version}")

    @cached_property
    def metrics(self) -> MetricsFile:
        """The run's `metrics.csv`."""
        return MetricsFile(Path(self.log_dir, "metrics.csv"))

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """TensorBoard's writer, once something is logged.

        Raises:
            AttributeError: Nothing is logged yet. Lightning asks for the writer before it knows that a run can
                begin, does without if there is none, and a writer would make the folder.
        """
        if not self.began:
            raise AttributeError("TensorBoard's writer begins with the first metric; log one before you use it.")
        return super().experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Logs numbers; what the disk does not take is lost, which is said once.

        Args:
            metrics: Names and numbers; `env_steps` among them is left out, as it is the axis.
            step: Their place on the axis, in environment steps; in training it is not used, for Lightning and its
                callbacks count otherwise.
        """
        step = self.clock() if self.clock else step
        self.began = True
        with self._going_on():
            if self.metrics.is_deleted():
                self._begin_anew()
        values = self._admitted({name: value for name, value in metrics.items() if name != AXIS})
        with self._going_on():
            self.metrics.append({AXIS: step, **values})
        with self._going_on():
            super().log_metrics(values, step)

    def _admitted(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Convert the metrics that the file has a column for, or room for one; warn once about the others."""
        values, left_out = admitted(metrics, self.metrics.columns)
        if left_out and not self._is_full:
            self._is_full = True
            rank_zero_warn(
                f"metrics.csv must have at most {MOST_COLUMNS} columns, got the new metric {left_out[0]}. It and later "
                "new metrics are not logged. Use the same names in every episode's info."
            )
        return values

    def _begin_anew(self) -> None:
        rank_zero_warn(f"{self.log_dir} was deleted during the run; the log begins anew there.")
        del self.metrics
        self._experiment = None  # its file has no name any more

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        """Turns an error of the disk into a warning, the first time."""
        try:
            yield
        except (OSError, ValueError) as error:
            # Lightning says of whatever TensorBoard raises that the value is not supported.
            reason = error if isinstance(error, WRITE_ERRORS) else error.__cause__
            if not isinstance(reason, WRITE_ERRORS):
                raise
            self._warnings.warn(
                f"The run goes on, but some of its log in {self.log_dir} could not be written: {reason}"
            )

    # Going on in the folder of a run.

    def position(self) -> dict[str, Any]:
        """How far the log on the disk is: the rows of `metrics.csv`, the bytes of each file of events."""
        if not self.metrics.rows:
            return {"rows": 0, "events": {}}
        with self._going_on():
            events: Any = self._experiment  # older releases of torch have no types for it
            if events is not None:
                events.flush()
            for path in (self.metrics.path, *self._events()):
                sync(path)
        return {"rows": self.metrics.rows, "events": {path.name: path.stat().st_size for path in self._events()}}

    @rank_zero_only
    def go_on_from(self, position: Mapping[str, Any]) -> None:
        """Takes away what was logged after a position, by a process that was killed."""
        missing = position["rows"] - self.metrics.rows
        if missing > 0:
            rank_zero_warn(f"{self.metrics.path} lacks {missing} rows that it had when the checkpoint was saved.")
        self.metrics.cut(position["rows"])
        for path in self._events():
            if path.name in position["events"]:
                os.truncate(path, min(position["events"][path.name], path.stat().st_size))
            else:
                path.unlink()

    def _events(self) -> list[Path]:
        return sorted(Path(self.log_dir).glob("events.out.tfevents.*"))

    @rank_zero_only
    def log_hyperparams(
        self,
        params: dict[str, Any] | Namespace,
        metrics: dict[str, Any] | None = None,
        step: int | None = None,
    ) -> None:
        """Keeps the hyperparameters for `hparams.yaml`, objects as their class and arguments.

        Args:
            params: Names and values.
            metrics: Not used.
            step: Not used.
        """
        self.hparams.update(vars(params) if isinstance(params, Namespace) else params)

    @rank_zero_only
    def save(self) -> None:
        """Flushes the events and writes `hparams.yaml`, unless nothing is logged yet; rows need no flush."""
        if self.began:
            with self._going_on():
                super().save()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Closes the events; a folder in which nothing was logged goes."""
        with self._going_on():
            super().finalize(status)
        if not self.began:
            with contextlib.suppress(OSError):  # something else is there
                for folder in self._made:
                    folder.rmdir()


def check_apart(own: RunLogger, loggers: Sequence[Logger]) -> None:
    """Raise `UsageError` if another logger writes into the run's folder, where both may write a metrics.csv."""
    for other in loggers:
        folder = None if other is own else getattr(other, "log_dir", None)
        if folder is not None and Path(folder).resolve() == Path(own.log_dir).resolve():
            raise UsageError(
                f"trainer.logger must write outside the run's folder, got {type(other).__name__} with {folder}. "
                "Use another save_dir or name for it."
            )

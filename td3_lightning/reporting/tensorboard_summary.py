"""Show the configuration of a run and its hyperparameters in TensorBoard."""

from collections.abc import Iterator, Mapping
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from td3_lightning.reporting.logger import RunLogger

METRICS = ("eval/return_mean", "eval/return_std", "eval/length_mean")


class TensorBoardSummary(Callback):
    """Write the configuration as text, and the hyperparameters, at the first evaluation of a process.

    TensorBoard shows the hyperparameters beside the last value of each metric.

    Args:
        text: Configuration as YAML.
        settings: The same configuration, as nested values.
    """

    def __init__(self, text: str, settings: Mapping[str, Any]) -> None:
        self.text, self.settings = text, settings
        self._is_written = False

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Write the summary if training has a `RunLogger` with at least one metric."""
        logger = next((logger for logger in trainer.loggers if isinstance(logger, RunLogger)), None)
        if self._is_written or logger is None or not logger.has_logged or trainer.sanity_checking:
            return
        metrics = {name: float(trainer.callback_metrics[name]) for name in METRICS if name in trainer.callback_metrics}
        logger.log_summary(self.text, dict(flatten(self.settings)), metrics, pl_module.clock)
        self._is_written = True


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield the names and values of nested settings, such as ("model.tau", 0.005). Lists of objects are numbered."""
    if isinstance(value, Mapping):
        for key, held in value.items():
            yield from flatten(held, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(held, Mapping) for held in value):
        yield from flatten(dict(enumerate(value)), name)
    elif value is not None:
        yield name, value if isinstance(value, bool | int | float | str) else str(value)

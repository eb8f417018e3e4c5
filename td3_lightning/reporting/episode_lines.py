"""Print one line for each training episode."""

import sys
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from td3_lightning.reporting.console import echo


class PrintEpisodes(Logger):
    """Print the return and the length of each training episode, and `env_steps`, above the progress bar.

    Add it to `trainer.logger`. The Collector passes the numbers of each episode to all loggers.
    """

    name = "PrintEpisodes"
    version = None

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Print a line if the metrics are those of an episode; `step` is env_steps."""
        if "train/return" not in metrics:
            return
        length = metrics.get("train/length", float("nan"))
        line = f"episode: return {metrics['train/return']:,.2f}, length {length:,.0f}, {step or 0:,} env_steps"
        with Tqdm.external_write_mode(file=sys.stdout):
            echo(line)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Print nothing."""

"""Table of results after `test` and `validate`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from rich.markup import escape
from rich.table import Table

from td3_lightning.reporting.console import show


class Results(Callback):
    """Prints a table after `test` and `validate`: every number of the episodes, and their time."""

    def __init__(self) -> None:
        self._episodes: list[dict[str, float]] = []
        self._seeds: list[int] = []
        self._began = 0.0

    def on_test_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Forgets an earlier test."""
        self._episodes, self._seeds = [], []

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Starts an episode's clock."""
        self._began = time.perf_counter()

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Notes what the episode reported, and its time."""
        first = {name: outputs[name] for name in ("return", "length")}
        self._episodes.append({**first, **outputs, "wall time (s)": time.perf_counter() - self._began})
        self._seeds.append(batch.seed)

    @rank_zero_only
    def on_test_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Prints them."""
        if trainer.state.fn == "fit" or not self._episodes:
            return
        count, seeds = len(self._episodes), f"{min(self._seeds)} to {max(self._seeds)}"
        print(f"\n{count} episodes, seeds {seeds}, after {pl_module.env_steps:,} env_steps of training")
        show(results_table(self._episodes))

    on_validation_start = on_test_start
    on_validation_batch_start = on_test_batch_start
    on_validation_batch_end = on_test_batch_end
    on_validation_end = on_test_end


def results_table(episodes: Sequence[Mapping[str, float]]) -> Table:
    """A row for each number of the episodes: mean ± standard deviation, least and most; "3 of 3" for truths."""
    table = Table("of an episode", *("mean ± std", "min", "max"))
    for column in table.columns[1:]:
        column.justify = "right"
    for name in dict.fromkeys(name for episode in episodes for name in episode):
        values = np.array([episode[name] for episode in episodes if name in episode])
        if name not in ("return", "length") and np.isin(values, (0.0, 1.0)).all():
            table.add_row(escape(name), f"{values.sum():.0f} of {len(values)}", "", "")
        else:
            spread = f"{values.mean():,.2f} ± {values.std():,.2f}"
            table.add_row(escape(name), spread, _number(values.min()), _number(values.max()))
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"

"""Print the results of `test` and `validate`."""

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
from td3_lightning.reporting.summary import short


class Results(Callback):
    """Print a table of the episodes of `test` and `validate`: their metrics and wall time."""

    def __init__(self) -> None:
        self._episodes: list[dict[str, float]] = []
        self._seeds: list[int] = []
        self._start_time = 0.0

    def on_test_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Discard the episodes of an earlier test."""
        self._episodes, self._seeds = [], []

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Store the start time of an episode."""
        self._start_time = time.perf_counter()

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Store the metrics and the wall time of an episode."""
        first = {name: outputs[name] for name in ("return", "length")}
        self._episodes.append({**first, **outputs, "wall time (s)": time.perf_counter() - self._start_time})
        self._seeds.append(batch.seed)

    @rank_zero_only
    def on_test_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Print the table."""
        if trainer.state.fn == "fit" or not self._episodes:
            return
        first, last = min(self._seeds), max(self._seeds)
        episodes = (
            f"{len(self._episodes)} episodes, seeds {first} to {last}" if last > first else f"1 episode, seed {first}"
        )
        print(f"\n{episodes}, after {pl_module.clock:,} {pl_module.clock_name} of training")
        show(results_table(self._episodes))

    on_validation_start = on_test_start
    on_validation_batch_start = on_test_batch_start
    on_validation_batch_end = on_test_batch_end
    on_validation_end = on_test_end


def results_table(episodes: Sequence[Mapping[str, float]]) -> Table:
    """Build a table with a row for each metric: mean ± standard deviation, min and max.

    A metric whose values are all 0 or 1 is shown as a count, for example "3 of 3". The standard deviation is left out
    if there is only one value. Metrics with the same values share a row. A metric that some episodes do not report is
    marked with the number of those that do.
    """
    table = Table("per episode", *("mean ± std", "min", "max"))
    for column in table.columns[1:]:
        column.justify = "right"
    rows: dict[tuple[float | None, ...], list[str]] = {}  # names by the values of all episodes
    for name in dict.fromkeys(name for episode in episodes for name in episode):
        rows.setdefault(tuple(episode.get(name) for episode in episodes), []).append(name)
    for held, names in rows.items():
        values = np.array([value for value in held if value is not None])
        partly = "" if len(values) == len(held) else f" (reported by {len(values)} of {len(held)} episodes)"
        label = escape(", ".join(names) + partly)
        if names[0] not in ("return", "length") and np.isin(values, (0.0, 1.0)).all():
            table.add_row(label, f"{values.sum():.0f} of {len(values)}", "", "")
        else:
            spread = f" ± {values.std():,.2f}" if len(values) > 1 else ""
            table.add_row(label, f"{values.mean():,.2f}{spread}", short(values.min()), short(values.max()))
    return table

"""The progress of all runs: one table on a terminal, otherwise a line for each change."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack

from rich.live import Live

from td3_lightning.reporting.console import echo
from td3_lightning.tuning.result import Result, number, results_table, settings_text

ORDER = ("running", "finished", "pruned", "failed", "unfinished", "waiting")
ROWS = 30  # of the table on a terminal


class Progress(ExitStack):
    """Show the results of all runs while a sweep is active.

    Args:
        metric: Metric of the evaluations.
    """

    def __init__(self, metric: str) -> None:
        super().__init__()
        self._metric = metric
        self._shown: dict[str, tuple[str, float | None]] = {}  # state and env_steps of each run
        self._live = self.enter_context(Live(auto_refresh=False)) if sys.stdout.isatty() else None

    def update(self, results: Sequence[Result]) -> None:
        """Show results that have changed."""
        if self._live is not None:
            ordered = sorted(results, key=lambda result: ORDER.index(result.state))
            self._live.update(results_table(ordered, self._metric, ROWS), refresh=True)
            return
        for result in results:
            now = (result.state, result.values.get("env_steps"))
            before = self._shown.get(result.label)
            self._shown[result.label] = now
            if now != before and result.state != "waiting" and (before is not None or result.state == "running"):
                state = result.status if before is None or before[0] != result.state else ""
                echo(f"{result.label:10} {state:8} {self._numbers(result)}".rstrip())

    def _numbers(self, result: Result) -> str:
        values = result.values
        if not values:
            return settings_text(result.settings)
        numbers = f"{self._metric} {number(values['last'])}, best {number(values['best'])}"
        return f"{values['env_steps']:,.0f} {result.clock}  {numbers}"

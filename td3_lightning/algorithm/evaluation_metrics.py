"""Means of the numbers that evaluation episodes report."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torchmetrics import CatMetric, Metric

from td3_lightning.algorithm.distributed import gather_from_ranks


class EvaluationMetrics:
    """Collect the numbers of evaluation episodes and compute their mean; for the return also its spread."""

    def __init__(self) -> None:
        self.values: dict[str, Metric] = {}

    def reset(self) -> None:
        """Discard all episodes."""
        self.values.clear()

    def update(self, report: Mapping[str, float], device: torch.device) -> None:
        """Add the numbers of an episode."""
        for name, value in report.items():
            if name not in self.values:
                metric = CatMetric(nan_strategy="disable", sync_on_compute=False)
                self.values[name] = metric.to(device).set_dtype(torch.float64)
            self.values[name].update(value)

    def compute(self, stage: str) -> dict[str, Tensor]:
        """Return the means by the names under which they are logged, such as `eval/return_mean`.

        The episodes of a process may report other names than those of another one, so all are exchanged at once.
        """
        ranks = gather_from_ranks(self._own_values)
        logs: dict[str, Tensor] = {}
        for name in dict.fromkeys(name for rank in ranks for name in rank):
            values = torch.cat([rank[name] for rank in ranks if name in rank])
            logs[f"{stage}/{name}_mean" if name in ("return", "length") else f"{stage}/{name}"] = values.mean()
            if name == "return":
                logs[f"{stage}/return_std"] = values.std(correction=0)
                logs[f"{stage}/return_min"], logs[f"{stage}/return_max"] = values.min(), values.max()
        return logs

    def _own_values(self) -> dict[str, Tensor]:
        """Return the numbers (episodes,) of this process by name."""
        return {name: metric.compute().double().reshape(-1).cpu() for name, metric in self.values.items()}

"""Means of the numbers that evaluation episodes report."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torchmetrics import CatMetric, Metric

from td3_lightning.algorithm.distributed import gather_from_ranks


class EvaluationMetrics:
    """Collect the numbers of evaluation episodes and compute their mean; for the return also its spread.

    Some episodes may not report a name. The mean of a number is that of the episodes that report it. The mean of a
    boolean, such as `success`, is that of all episodes: one that does not report it counts as false.
    """

    def __init__(self) -> None:
        self.values: dict[str, Metric] = {}
        self.flags: list[str] = []  # names of the booleans that any evaluation reported, in their order

    def begin(self, metrics: dict[str, Tensor]) -> None:
        """Discard all episodes, and the metrics of the previous evaluation.

        Lightning keeps the last value of each metric, which callbacks would use if this evaluation does not report it.
        """
        self.reset()
        for name in [name for name in metrics if name.startswith("eval/")]:
            del metrics[name]

    def reset(self) -> None:
        """Discard all episodes."""
        self.values.clear()

    def update(self, report: Mapping[str, float], device: torch.device) -> None:
        """Add the numbers of an episode."""
        for name, value in report.items():
            if isinstance(value, bool) and name not in self.flags:
                self.flags.append(name)
            if name not in self.values:
                metric = CatMetric(nan_strategy="disable", sync_on_compute=False)
                self.values[name] = metric.to(device).set_dtype(torch.float64)
            self.values[name].update(value)

    def compute(self, stage: str) -> dict[str, Tensor]:
        """Return the means by the names under which they are logged, such as `eval/return_mean`.

        A name that some episodes do not report also has `eval/NAME_reported`, the number of those that do. The episodes
        of a process may report other names than those of another one, so all are exchanged at once.
        """
        ranks, flags = zip(*gather_from_ranks(self._own_values), strict=True)
        self.flags = list(dict.fromkeys(name for rank in flags for name in rank))
        episodes = sum(len(rank.get("return", ())) for rank in ranks)
        logs: dict[str, Tensor] = {}
        for name in dict.fromkeys([*(name for rank in ranks for name in rank), *self.flags]):
            values = torch.cat([torch.empty(0, dtype=torch.float64), *(rank[name] for rank in ranks if name in rank)])
            mean = values.sum() / episodes if name in self.flags else values.mean()
            logs[f"{stage}/{name}_mean" if name in ("return", "length") else f"{stage}/{name}"] = mean
            if len(values) < episodes:
                logs[f"{stage}/{name}_reported"] = torch.tensor(float(len(values)), dtype=torch.float64)
            if name == "return":
                logs[f"{stage}/return_std"] = values.std(correction=0)
                logs[f"{stage}/return_min"], logs[f"{stage}/return_max"] = values.min(), values.max()
        return logs

    def _own_values(self) -> tuple[dict[str, Tensor], list[str]]:
        """Return the numbers (episodes,) of this process by name, and the names of booleans."""
        values = {name: metric.compute().double().reshape(-1).cpu() for name, metric in self.values.items()}
        return values, self.flags

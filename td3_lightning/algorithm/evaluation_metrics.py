"""Means of the numbers that evaluation episodes report."""

from collections.abc import Mapping

import torch
from torch import Tensor

from td3_lightning.algorithm.distributed import gather_from_ranks


class EvaluationMetrics:
    """Collect the numbers of evaluation episodes and compute their mean; for the return also its spread.

    Some episodes may not report a name. The mean of a number is that of the episodes that report it. The mean of a
    boolean, such as `success`, is that of all episodes: one that does not report it counts as false.
    """

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.flags: list[str] = []  # names of the booleans that any evaluation reported, in their order

    def begin(self, metrics: dict[str, Tensor]) -> None:
        """Discard all episodes, and the metrics of the previous evaluation.

        Lightning keeps the last value of each metric, which callbacks would use if this evaluation does not report it.
        """
        self.values.clear()
        for name in [name for name in metrics if name.startswith("eval/")]:
            del metrics[name]

    def update(self, report: Mapping[str, float]) -> None:
        """Add the numbers of an episode."""
        for name, value in report.items():
            if isinstance(value, bool) and name not in self.flags:
                self.flags.append(name)
            self.values.setdefault(name, []).append(float(value))

    def compute(self, stage: str) -> dict[str, Tensor]:
        """Return the means by the names under which they are logged, such as `eval/return_mean`; discard the episodes.

        A name that some episodes do not report also has `eval/NAME_reported`, the number of those that do. The episodes
        of a process may report other names than those of another one, so all are exchanged at once.
        """
        ended, self.values = self.values, {}
        ranks, flags = zip(*gather_from_ranks(lambda: (ended, self.flags)), strict=True)
        self.flags = list(dict.fromkeys(name for rank in flags for name in rank))
        episodes = sum(len(rank.get("return", ())) for rank in ranks)
        logs: dict[str, Tensor] = {}
        for name in dict.fromkeys([*(name for rank in ranks for name in rank), *self.flags]):
            values = torch.tensor([value for rank in ranks for value in rank.get(name, ())], dtype=torch.float64)
            mean = values.sum() / episodes if name in self.flags else values.mean()
            logs[f"{stage}/{name}_mean" if name in ("return", "length") else f"{stage}/{name}"] = mean
            if len(values) < episodes:
                logs[f"{stage}/{name}_reported"] = torch.tensor(float(len(values)), dtype=torch.float64)
            if name == "return":
                logs[f"{stage}/return_std"] = values.std(correction=0)
                logs[f"{stage}/return_min"], logs[f"{stage}/return_max"] = values.min(), values.max()
        return logs

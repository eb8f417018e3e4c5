"""Batches with a fixed number of transitions from a second replay buffer."""

import torch

from td3_lightning.errors import refuse, require_float, require_int
from td3_lightning.replay.batch import Batch
from td3_lightning.replay.buffer import Replay


def split_batch(batch_size: int, share: float) -> tuple[int, int]:
    """Return how many transitions of a batch come from the agent, and how many from the dataset.

    Args:
        batch_size: Transitions in a batch.
        share: Share of the dataset in [0, 1], rounded to a whole number of transitions.

    Raises:
        UsageError: A value is out of its range, or a share between 0 and 1 is rounded to 0 or to 1.
    """
    share = require_float("data.dataset_share", share, least=0, most=1, fix="Use 0.5, for example.")
    size = require_int("data.batch_size", batch_size, least=1)
    count = round(share * size)
    if (share > 0 and count == 0) or (share < 1 and count == size):
        constraint = f"0, 1 or a share of whole transitions in a batch of {size}"
        raise refuse("data.dataset_share", constraint, share, "Use 0.5, for example, or increase data.batch_size.")
    return size - count, count


class MixedReplay:
    """Sample a part of each batch from the agent's replay buffer and the rest from that of a dataset.

    Args:
        own: Transitions of the agent, whose `batch_size` is ignored if `counts` begins with 0.
        dataset: Transitions of the dataset.
        counts: Transitions of each in a batch, as `split_batch` returns them.
    """

    def __init__(self, own: Replay, dataset: Replay, counts: tuple[int, int]) -> None:
        self.own, self.dataset = own, dataset
        self._parts = [replay for replay, count in zip((own, dataset), counts, strict=True) if count]

    def __len__(self) -> int:
        return len(self.own)

    def sample(self) -> Batch:
        """Sample a batch: first the agent's transitions, then those of the dataset."""
        # The same n of the n-step returns and the same discount for both parts.
        self.dataset.steps_before = self.own.steps_before + self.own.steps_stored
        parts = [replay.sample() for replay in self._parts]
        return parts[0] if len(parts) == 1 else Batch(*map(torch.cat, zip(*parts, strict=True)))

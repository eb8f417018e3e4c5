"""Batches from a replay buffer, also with a fixed number of transitions from a second one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from td3_lightning.replay.batch import Batch
from td3_lightning.replay.buffer import Replay


class MixedReplay:
    """Sample a part of each batch from the agent's replay buffer and the rest from that of a dataset.

    Args:
        own: Transitions of the agent, whose `batch_size` is ignored if `counts` begins with 0.
        dataset: Transitions of the dataset.
        counts: Transitions of each in a batch, not both 0.
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


@dataclass(frozen=True)
class Batches:
    """Yield one epoch of random batches.

    The state is empty, because the data module saves the replay. The Trainer resumes in the middle of an epoch only if
    the loader has a `state_dict`.

    Args:
        replay: Buffer to sample from.
    """

    replay: Replay | MixedReplay

    def __len__(self) -> int:
        return len(self.replay)

    def __iter__(self) -> Iterator[Batch]:
        return (self.replay.sample() for _ in range(len(self)))

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the empty state."""

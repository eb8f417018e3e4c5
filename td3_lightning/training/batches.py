"""Loader that samples batches from the replay buffer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from td3_lightning.replay.batch import Batch
from td3_lightning.replay.buffer import Replay
from td3_lightning.replay.mixed import MixedReplay


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

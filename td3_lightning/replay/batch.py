"""Batches of transitions, their transfer to another device, and loaders that draw them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from td3_lightning.replay.buffer import Replay


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to another device without blocking."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


class Batch(NamedTuple):
    """Transitions for the learner, in float32. Frames of `data.pixels` are bytes.

    `reward` is the n-step sum. `discount` is gamma^n, where n is the number of summed rewards, and 0 if the episode
    terminated. After a truncation, such as a time limit, it is still gamma^n, so the target bootstraps.
    """

    obs: Tensor  # (batch, obs_dim)
    action: Tensor  # (batch, action_dim), in the environment's units
    reward: Tensor  # (batch,)
    discount: Tensor  # (batch,)
    next_obs: Tensor  # (batch, obs_dim)

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to another device without blocking. Columns of one dtype are copied in one transfer."""
        if len({column.dtype for column in self}) > 1:
            return Batch(*(copy_to_device(column, device) for column in self))
        columns = [column.reshape(len(column), -1) for column in self]
        packed = copy_to_device(torch.cat(columns, dim=1), device)
        parts = torch.split(packed, [column.shape[1] for column in columns], dim=1)
        return Batch(*(part.reshape(column.shape) for part, column in zip(parts, self, strict=True)))


class MixedReplay:
    """Sample a part of each batch from the agent's replay buffer and the rest from that of a dataset.

    Args:
        own: Transitions of the agent, whose `batch_size` is ignored if `counts` begins with 0.
        dataset: Transitions of the dataset.
        counts: Transitions of each in a batch, not both 0.
    """

    def __init__(self, own: "Replay", dataset: "Replay", counts: tuple[int, int]) -> None:
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
    """

    replay: "Replay | MixedReplay"

    def __len__(self) -> int:
        return len(self.replay)

    def __iter__(self) -> Iterator[Batch]:
        return (self.replay.sample() for _ in range(len(self)))

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the empty state."""

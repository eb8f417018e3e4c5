"""Batches of transitions, and their transfer to another device."""

from typing import NamedTuple

import torch
from torch import Tensor


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

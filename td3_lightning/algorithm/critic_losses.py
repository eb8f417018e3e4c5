"""Losses of the critics, from their TD errors (N, batch)."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

CriticLoss = Literal["mse", "huber"]


def squared_error(error: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the sum over critics of the mean squared error, and no further outputs of the update."""
    return error.square().mean(dim=1).sum(), {}


def huber(error: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the sum over critics of the mean Huber loss, and the TD errors from which priorities are computed.

    The threshold is 1, the minimum priority of LAP. With transitions drawn in proportion to max(|error|, 1)^alpha, the
    expected gradient is that of a loss under uniform sampling (Fujimoto et al., 2020, theorem 2).
    """
    loss = functional.huber_loss(error, torch.zeros_like(error), reduction="none").mean(dim=1).sum()
    return loss, {"td_error": error.detach().abs().amax(dim=0)}


CRITIC_LOSSES: dict[str, Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]] = {"mse": squared_error, "huber": huber}

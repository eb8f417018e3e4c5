"""Losses of the critics, and actor losses for offline data.

Shapes: `error` are the critics' TD errors (N, batch). `q` are values (..., batch) of the policy's actions. `deviation`
(batch, action_dim) are the policy's actions minus those of the batch, relative to half the action range.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

CriticLoss = Literal["mse", "huber"]


def at_least_float32(values: Tensor) -> Tensor:
    """Convert numbers of a half-precision network to float32, because float16 overflows in gradients of a mean."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


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


def td3_bc_loss(q: Tensor, deviation: Tensor, weight: float) -> Tensor:
    """Return the loss of TD3+BC, -lambda * mean Q + mean squared deviation.

    lambda is 1 / (weight * mean |Q|), so weight is 1 / alpha of the paper (Fujimoto and Gu, 2021), which uses 0.4.
    """
    return deviation.square().mean() - q.mean() / (weight * q.detach().abs().mean())


def td7_bc_loss(q: Tensor, deviation: Tensor, weight: float) -> Tensor:
    """Return the loss of offline TD7, -mean Q + weight * mean |Q| * mean squared deviation.

    weight is lambda of the paper (Fujimoto et al., 2023), which uses 0.1. The loss is that of TD3+BC times
    weight * mean |Q|.
    """
    return weight * q.detach().abs().mean() * deviation.square().mean() - q.mean()

"""Actor losses for offline data, which keep the policy close to the actions of the batch.

Shapes: `q` are values (..., batch) of the policy's actions. `deviation` (batch, action_dim) are the policy's actions
minus those of the batch, in half-widths of the action box.
"""

from torch import Tensor


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

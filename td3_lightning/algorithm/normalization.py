"""Normalization of observations by running statistics."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from td3_lightning.algorithm.distributed import stack_over_ranks

EPSILON = 1e-8  # added to the variance, as in Gymnasium and Stable-Baselines3
CLIP = 10.0  # standard deviations, as in Stable-Baselines3


class RunningNormalizer(nn.Module):
    """Normalize observations by the mean and variance of all observations so far, and clip them to [-10, 10].

    The statistics are float64 in every precision. Batches of observations are merged by the formula of Chan, Golub and
    LeVeque (1979). Unlike a sum of squares, its error does not grow with the ratio of mean and standard deviation.
    Before the first observation, the mean is 0 and the variance is 1.
    """

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, obs_dim: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(obs_dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(obs_dim, dtype=torch.float64))

    def forward(self, obs: Tensor) -> Tensor:
        """Normalize observations (..., obs_dim), and return them in their own type."""
        normalized = (obs - self.mean) / (self.var + EPSILON).sqrt()
        return normalized.clamp_(-CLIP, CLIP).to(obs.dtype)

    @torch.no_grad()
    def update(self, obs: Tensor) -> None:
        """Add observations (n, obs_dim) of every process, each with its own n. Every process must call this method."""
        obs = obs.to(torch.float64)
        mean = obs.mean(dim=0) if len(obs) else torch.zeros_like(self.mean, device=obs.device)
        var = (obs - mean).square().sum(dim=0) / max(len(obs), 1)
        moments = torch.cat([obs.new_tensor([len(obs)]), mean, var]).to(self.mean.device)
        for own in stack_over_ranks(moments):  # in the same order everywhere, so that all processes stay equal
            self._merge(own[0], *own[1:].chunk(2))

    def _merge(self, count: Tensor, mean: Tensor, var: Tensor) -> None:
        self.count += count
        share = count / self.count.clamp(min=1)
        self.var.lerp_(var + (mean - self.mean).square() * (1 - share), share)
        self.mean.lerp_(mean, share)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move the statistics to another device, but keep their type: bfloat16 cannot represent the count."""
        keep_type: Any = super()._apply  # untyped in torch
        return keep_type(lambda tensor: tensor.to(fn(tensor).device), recurse)

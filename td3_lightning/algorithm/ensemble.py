"""Layers of N independent networks, which are computed together or one network at a time.

One batched product per layer is fastest on a GPU and on several CPU threads, and one product per network on one thread.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

Member = Callable[[Tensor], Tensor]  # a layer of one of the networks


class EnsembleLinear(nn.Module):
    """N independent linear layers, computed as one batched product and initialized like `torch.nn.Linear`."""

    def __init__(self, num_members: int, fan_in: int, fan_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(fan_in)
        self.weight = nn.Parameter(torch.empty(num_members, fan_in, fan_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_members, 1, fan_out).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs (N, batch, fan_out) for inputs (N, batch, fan_in)."""
        return torch.baddbmm(self.bias, inputs, self.weight)

    def members(self) -> list[Member]:
        """Return the N layers as functions of inputs (batch, fan_in)."""
        # unbind, because the gradients of N selections are added in full size
        pairs = zip(self.weight.unbind(), self.bias.unbind(), strict=True)
        return [partial(_linear, weight, bias) for weight, bias in pairs]


class EnsembleLayerNorm(nn.Module):
    """N independent layer norms over the last axis, which has `width` numbers."""

    def __init__(self, num_members: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_members, 1, width))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, width))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalize inputs (N, batch, width)."""
        normed = nn.functional.layer_norm(inputs, inputs.shape[-1:])
        return self.bias + self.weight * normed

    def members(self) -> list[Member]:
        """Return the N layer norms as functions of inputs (batch, width)."""
        pairs = zip(self.weight.squeeze(1).unbind(), self.bias.squeeze(1).unbind(), strict=True)
        return [partial(_layer_norm, weight, bias) for weight, bias in pairs]


class EnsembleReLU(nn.ReLU):
    """ReLU of N networks."""

    def members(self) -> Iterator[Member]:
        """Yield the ReLU of each network. It changes its inputs, which no other layer needs."""
        return repeat(torch.relu_)


def has_hooks(module: nn.Module) -> bool:
    """Return whether a forward or backward hook is registered on a module, or its `forward` is replaced."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks) or "forward" in vars(module)


def are_separable(layers: Iterable[nn.Module]) -> bool:
    """Return whether all layers are those of this file and have no hooks, which expect all networks at once."""
    own = EnsembleLinear, EnsembleLayerNorm, EnsembleReLU
    return all(type(layer) in own and not has_hooks(layer) for layer in layers)


def members(layers: Iterable[Any]) -> Iterator[Sequence[Member]]:
    """Yield the layers of each network as functions of inputs (batch, fan_in), if `are_separable(layers)`."""
    return zip(*(layer.members() for layer in layers), strict=False)  # a ReLU has as many members as are asked for


def compute(inputs: Tensor, layers: Sequence[Member]) -> Tensor:
    """Return the outputs of layers, one after the other."""
    for layer in layers:
        inputs = layer(inputs)
    return inputs


def _linear(weight: Tensor, bias: Tensor, inputs: Tensor) -> Tensor:
    return torch.addmm(bias, inputs, weight)


def _layer_norm(weight: Tensor, bias: Tensor, inputs: Tensor) -> Tensor:
    return nn.functional.layer_norm(inputs, weight.shape, weight, bias)

"""The actor and the critics (paper, appendix C: two hidden layers and ReLU)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from td3_lightning.errors import UsageError, require_bool, require_floats, require_int, require_ints


class Actor(nn.Module):
    """A deterministic policy: a multilayer perceptron, tanh, then the box of actions.

    Any finite box fits, an asymmetric one too: the output is `centre + scale * tanh(...)`.

    Args:
        obs_dim: Numbers in an observation.
        action_low: Lower end of every action, in the environment's units.
        action_high: Upper end of every action, in the environment's units.
        hidden_dims: Width of each hidden layer.
        layer_norm: Normalise each hidden layer before its ReLU.
        encoder: A network of its own before these layers, whose features are `obs_dim` then.
    """

    scale: Tensor
    centre: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_low: Sequence[float],
        action_high: Sequence[float],
        hidden_dims: Sequence[int] = (256, 256),
        layer_norm: bool = False,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        obs_dim, hidden_dims = require_int("obs_dim", obs_dim, least=1), require_ints("hidden_dims", hidden_dims, 1)
        low, high = _box(action_low, action_high)
        layer_norm = require_bool("layer_norm", layer_norm)
        self.encoder = encoder or nn.Identity()
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise([obs_dim, *hidden_dims]):
            layers.append(nn.Linear(fan_in, fan_out))
            if layer_norm:
                layers.append(nn.LayerNorm(fan_out))
            layers.append(nn.ReLU())
        self.layers = nn.Sequential(*layers, nn.Linear([obs_dim, *hidden_dims][-1], len(low)))
        self.register_buffer("scale", (high - low) / 2)
        self.register_buffer("centre", (high + low) / 2)

    def forward(self, obs: Tensor) -> Tensor:
        """Actions (batch, action_dim), in the environment's units, for observations (batch, obs_dim)."""
        return self.centre + self.scale * torch.tanh(self.layers(self.encoder(obs)))


class EnsembleLinear(nn.Module):
    """N independent linear layers as one batched product.

    Each is initialised as `torch.nn.Linear` is.

    Args:
        members: How many layers, N.
        fan_in: Inputs of each.
        fan_out: Outputs of each.
    """

    def __init__(self, members: int, fan_in: int, fan_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(fan_in)
        self.weight = nn.Parameter(torch.empty(members, fan_in, fan_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, fan_out).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        """(members, batch, fan_out) from (members, batch, fan_in)."""
        return torch.baddbmm(self.bias, inputs, self.weight)

    def first(self, inputs: Tensor) -> Tensor:
        """(batch, fan_out) from (batch, fan_in), through the first layer alone."""
        return torch.addmm(self.bias[0], inputs, self.weight[0])


class EnsembleLayerNorm(nn.Module):
    """N independent layer normalisations over the last axis.

    Args:
        members: How many, N.
        width: Numbers that are normalised together.
    """

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, inputs: Tensor) -> Tensor:
        """(members, batch, width) from the same."""
        normed = nn.functional.layer_norm(inputs, inputs.shape[-1:])
        return self.bias + self.weight * normed

    def first(self, inputs: Tensor) -> Tensor:
        """(batch, width) from the same, through the first normalisation alone."""
        return nn.functional.layer_norm(inputs, inputs.shape[-1:], self.weight[0, 0], self.bias[0, 0])


class ReLU(nn.ReLU):
    """A ReLU that N networks share."""

    first = nn.ReLU.forward


class Critics(nn.Module):
    """N independent Q-functions on the first axis; the paper's twins are `num_critics=2`.

    What they are asked about is what their `encoder` makes of an observation, so that it is asked once for all that
    needs it; without one the two are the same.

    Args:
        obs_dim: Numbers in an observation, or features.
        action_dim: Numbers in an action.
        hidden_dims: Width of each hidden layer.
        num_critics: How many Q-functions, N.
        layer_norm: Normalise each hidden layer before its ReLU.
        encoder: The network that makes features of observations, trained with these.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int] = (256, 256),
        num_critics: int = 2,
        layer_norm: bool = False,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        obs_dim, action_dim = require_int("obs_dim", obs_dim, least=1), require_int("action_dim", action_dim, least=1)
        hidden_dims, layer_norm = require_ints("hidden_dims", hidden_dims, 1), require_bool("layer_norm", layer_norm)
        num_critics = require_int("num_critics", num_critics, least=1)
        self.encoder = encoder or nn.Identity()
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise([obs_dim + action_dim, *hidden_dims]):
            layers.append(EnsembleLinear(num_critics, fan_in, fan_out))
            if layer_norm:
                layers.append(EnsembleLayerNorm(num_critics, fan_out))
            layers.append(ReLU())
        last = [obs_dim + action_dim, *hidden_dims][-1]
        self.layers = nn.ModuleList([*layers, EnsembleLinear(num_critics, last, 1)])
        self.num_critics = num_critics

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Q-values (num_critics, batch) of observations (batch, obs_dim) and actions (batch, action_dim)."""
        hidden = torch.cat([obs, action], dim=-1).expand(self.num_critics, -1, -1)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden.squeeze(-1)

    def first(self, obs: Tensor, action: Tensor) -> Tensor:
        """Q-values (batch,) of the first critic alone, which is the one that the actor climbs."""
        hidden = torch.cat([obs, action], dim=-1)
        layer: Any  # every one here has a method of that name
        for layer in self.layers:
            hidden = layer.first(hidden)
        return hidden.squeeze(-1)


def _box(action_low: Sequence[float], action_high: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return the bounds of the actions, (action_dim,) each, or raise `UsageError` if they are not a finite box."""
    lows, highs = require_floats("action_low", action_low), require_floats("action_high", action_high)
    if len(lows) != len(highs) or not lows:
        raise UsageError(
            f"action_low and action_high must have one number per action, got {lows} and {highs}. Use the bounds of "
            "the environment's action_space."
        )
    low, high = torch.tensor(lows), torch.tensor(highs)
    if not (low < high).all():
        raise UsageError(
            f"action_low must be less than action_high, got {lows} and {highs}. Use the bounds of the environment's "
            "action_space."
        )
    if not (high - low).isfinite().all():
        raise UsageError(
            f"action_high - action_low must be finite in float32, got {lows} and {highs}. Use practical bounds, for "
            "example with td3_lightning.SymmetricActionBounds in data.wrappers."
        )
    return low, high

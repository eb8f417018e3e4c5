"""SALE: embeddings of states and actions, and the actor and critics that use them (Fujimoto et al., 2023, section 4).

Shapes: `z_s` and `z_sa` are (batch, zs_dim). Every action is normalized: each number is in [-1, 1].
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from td3_lightning.algorithm.distributed import stack_over_ranks
from td3_lightning.algorithm.ensemble import EnsembleLinear
from td3_lightning.algorithm.losses import at_least_float32
from td3_lightning.algorithm.networks import register_box

EPSILON = 1e-8  # smallest mean that `avg_l1_norm` divides by


def avg_l1_norm(inputs: Tensor) -> Tensor:
    """Divide each vector of inputs (..., n) by the mean of its absolute values."""
    inputs = at_least_float32(inputs)  # EPSILON is 0 in float16
    return inputs / inputs.abs().mean(-1, keepdim=True).clamp(min=EPSILON)


class SALE(nn.Module):
    """State encoder f and state-action encoder g: `z_s = f(obs)`, and `z_sa = g(z_s, action)` predicts the next `z_s`.

    Args:
        obs_dim: Numbers in an observation.
        action_dim: Numbers in an action.
        hidden_dims: Width of each hidden layer of both encoders.
        zs_dim: Numbers in an embedding.
    """

    def __init__(self, obs_dim: int, action_dim: int, hidden_dims: Sequence[int], zs_dim: int) -> None:
        super().__init__()
        self.state = _perceptron([obs_dim, *hidden_dims, zs_dim], nn.ELU)
        self.state_action = _perceptron([zs_dim + action_dim, *hidden_dims, zs_dim], nn.ELU)

    def embed_state(self, obs: Tensor) -> Tensor:
        """Return z_s, normalized, for observations (batch, obs_dim)."""
        return avg_l1_norm(self.state(obs))

    def embed_action(self, z_s: Tensor, action: Tensor) -> Tensor:
        """Return z_sa, which is not normalized, for actions (batch, action_dim)."""
        embedding: Tensor = self.state_action(torch.cat([z_s, action], dim=-1))
        return embedding


class SALEActor(nn.Module):
    """Deterministic policy that sees the observation and its embedding.

    Args:
        obs_dim: Numbers in an observation.
        action_low: Smallest value of each action, in the environment's units.
        action_high: Largest value of each action, in the environment's units.
        hidden_dims: Width of each hidden layer. The first one is also the width of the features of the observation.
        zs_dim: Numbers in an embedding.
    """

    scale: Tensor
    centre: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_low: Sequence[float],
        action_high: Sequence[float],
        hidden_dims: Sequence[int],
        zs_dim: int,
    ) -> None:
        super().__init__()
        self.features = nn.Linear(obs_dim, hidden_dims[0])
        self.layers = _perceptron([hidden_dims[0] + zs_dim, *hidden_dims, len(action_low)], nn.ReLU)
        register_box(self, action_low, action_high)

    def tanh_action(self, obs: Tensor, z_s: Tensor) -> Tensor:
        """Return actions (batch, action_dim) in [-1, 1] for observations (batch, obs_dim) and their embeddings."""
        features = avg_l1_norm(self.features(obs))
        return torch.tanh(self.layers(torch.cat([features, z_s], dim=-1)))

    def forward(self, obs: Tensor, z_s: Tensor) -> Tensor:
        """Return actions (batch, action_dim) in the environment's units."""
        return self.centre + self.scale * self.tanh_action(obs, z_s)

    def to_unit_range(self, action: Tensor) -> Tensor:
        """Convert actions from the environment's units to [-1, 1]."""
        return (action - self.centre) / self.scale


class SharedInputLinear(nn.Module):
    """N independent linear layers with own and shared inputs, initialized like `torch.nn.Linear`.

    The two parts are multiplied separately: a concatenation would copy the shared part for each layer, and its gradient
    would always be computed.

    Args:
        num_members: Number of layers, N.
        fan_in: Inputs of each layer.
        shared: Inputs that all layers share.
        fan_out: Outputs of each layer.
    """

    def __init__(self, num_members: int, fan_in: int, shared: int, fan_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(fan_in + shared)
        self.weight = nn.Parameter(torch.empty(num_members, fan_in, fan_out).uniform_(-bound, bound))
        self.shared_weight = nn.Parameter(torch.empty(num_members, shared, fan_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_members, 1, fan_out).uniform_(-bound, bound))

    def forward(self, inputs: Tensor, shared: Tensor) -> Tensor:
        """Return outputs (N, batch, fan_out) for inputs (N, batch, fan_in) and shared inputs (batch, shared)."""
        outputs = torch.baddbmm(self.bias, shared.expand(len(self.bias), -1, -1), self.shared_weight)
        return torch.baddbmm(outputs, inputs, self.weight)


class SALECritics(nn.Module):
    """N independent Q-functions of observation, action and their embeddings.

    Args:
        obs_dim: Numbers in an observation.
        action_dim: Numbers in an action.
        hidden_dims: Width of each hidden layer. The first one is also the width of the features of the observation
            and the action.
        zs_dim: Numbers in an embedding.
        num_critics: Number of Q-functions, N.
    """

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_dims: Sequence[int], zs_dim: int, num_critics: int
    ) -> None:
        super().__init__()
        self.features = EnsembleLinear(num_critics, obs_dim + action_dim, hidden_dims[0])
        self.mix = SharedInputLinear(num_critics, hidden_dims[0], 2 * zs_dim, hidden_dims[0])
        layers: list[nn.Module] = [nn.ELU()]
        for fan_in, fan_out in pairwise(hidden_dims):
            layers += [EnsembleLinear(num_critics, fan_in, fan_out), nn.ELU()]
        self.layers = nn.Sequential(*layers, EnsembleLinear(num_critics, hidden_dims[-1], 1))
        self.num_critics = num_critics

    def forward(self, obs: Tensor, action: Tensor, z_sa: Tensor, z_s: Tensor) -> Tensor:
        """Return Q-values (num_critics, batch) for observations, normalized actions and their embeddings."""
        inputs = torch.cat([obs, action], dim=-1).expand(self.num_critics, -1, -1)
        features = avg_l1_norm(self.features(inputs))
        q: Tensor = self.layers(self.mix(features, torch.cat([z_sa, z_s], dim=-1)))
        return q.squeeze(-1)


class ValueRange(nn.Module):
    """Range of the targets. It is fixed between two target updates, so that the clipped values are stable."""

    low: Tensor
    high: Tensor
    seen_low: Tensor
    seen_high: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, value in (("low", 0.0), ("high", 0.0), ("seen_low", math.inf), ("seen_high", -math.inf)):
            self.register_buffer(name, torch.tensor(value))

    def clip(self, values: Tensor) -> Tensor:
        """Clip values to the range that was seen before the last target update."""
        return values.clamp(self.low, self.high)

    def observe(self, targets: Tensor) -> None:
        """Extend the range by new targets. It takes effect at the next target update."""
        low, high = stack_over_ranks(targets).aminmax()  # of all ranks, whose targets must stay equal
        self.seen_low.copy_(torch.minimum(self.seen_low, low))
        self.seen_high.copy_(torch.maximum(self.seen_high, high))

    def update(self) -> None:
        """Use the range of all targets that have been observed so far."""
        self.low.copy_(self.seen_low)
        self.high.copy_(self.seen_high)


def _perceptron(widths: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Build linear layers with an activation between them."""
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])

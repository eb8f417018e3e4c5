"""The actor and the critics (appendix C of the paper: two hidden layers with ReLU)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from td3_lightning.algorithm.encoders import build
from td3_lightning.algorithm.ensemble import (
    EnsembleLayerNorm,
    EnsembleLinear,
    EnsembleReLU,
    are_separable,
    compute,
    has_hooks,
    members,
)
from td3_lightning.algorithm.settings import TD3Settings


class Actor(nn.Module):
    """Deterministic policy: a multilayer perceptron and a tanh that is scaled to the action box.

    The output is `centre + scale * tanh(...)`, so every finite box is supported, including asymmetric ones.

    Args:
        obs_dim: Numbers in an observation, or features of the encoder.
        action_low: Smallest value of each action, in the environment's units.
        action_high: Largest value of each action, in the environment's units.
        hidden_dims: Width of each hidden layer.
        layer_norm: Whether each hidden layer is normalized before its ReLU.
        encoder: The actor's own encoder, whose output has `obs_dim` features. None means no encoder.
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
        self.encoder = nn.Identity() if encoder is None else encoder
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise([obs_dim, *hidden_dims]):
            norm = [nn.LayerNorm(fan_out)] if layer_norm else []
            layers += [nn.Linear(fan_in, fan_out), *norm, nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear([obs_dim, *hidden_dims][-1], len(action_low)))
        register_box(self, action_low, action_high)

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions (batch, action_dim) for observations (batch, obs_dim), in the environment's units."""
        return self.centre + self.scale * torch.tanh(self.layers(self.encoder(obs)))


class Critics(nn.Module):
    """N independent Q-functions on the first axis; the paper's twins are `num_critics=2`.

    `forward` takes the features that `encoder` computes, so that one call of the encoder serves all critics. Without an
    encoder, they are the observations.

    Args:
        obs_dim: Numbers in an observation, or features of the encoder.
        action_dim: Numbers in an action.
        hidden_dims: Width of each hidden layer.
        num_critics: Number of Q-functions, N.
        layer_norm: Whether each hidden layer is normalized before its ReLU.
        encoder: Network from observations to features, trained by the critic loss. None means no encoder.
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
        self.encoder = nn.Identity() if encoder is None else encoder
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise([obs_dim + action_dim, *hidden_dims]):
            norm = [EnsembleLayerNorm(num_critics, fan_out)] if layer_norm else []
            layers += [EnsembleLinear(num_critics, fan_in, fan_out), *norm, EnsembleReLU()]
        last = [obs_dim + action_dim, *hidden_dims][-1]
        self.layers = nn.ModuleList([*layers, EnsembleLinear(num_critics, last, 1)])
        self.num_critics = num_critics

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Return Q-values (num_critics, batch) for features (batch, features) and actions (batch, action_dim)."""
        inputs = torch.cat([features, action], dim=-1)
        if not self._is_batched(inputs):
            return torch.stack([compute(inputs, layers).squeeze(-1) for layers in members(self.layers)])
        hidden = inputs.expand(self.num_critics, -1, -1)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden.squeeze(-1)

    def q1(self, features: Tensor, action: Tensor) -> Tensor:
        """Return the Q-values (batch,) of the first critic, which the actor maximizes."""
        if not (torch.compiler.is_compiling() or self.is_separable()):
            q: Tensor = self(features, action)
            return q[0]
        return compute(torch.cat([features, action], dim=-1), next(members(self.layers))).squeeze(-1)

    def _is_batched(self, inputs: Tensor) -> bool:
        """Return whether one product per layer computes all critics. One per critic is faster on one CPU thread."""
        one_thread = inputs.device.type == "cpu" and not torch.compiler.is_compiling() and torch.get_num_threads() == 1
        return not (one_thread and are_separable(self.layers))

    def is_separable(self) -> bool:
        """Return whether one critic can be computed alone: `forward` and the layers are those of this package."""
        is_own = type(self).forward is Critics.forward and not has_hooks(self)
        return is_own and are_separable(self.layers)


def build_networks(settings: TD3Settings) -> tuple[Actor, Critics]:
    """Build the actor and the critics with fresh parameters, and their encoders, shared or separate."""
    obs_dim, widths, layer_norm = settings.obs_dim, settings.hidden_dims, settings.layer_norm
    of_critics = build(settings.encoder, obs_dim)
    of_actor = nn.Identity() if settings.shares_encoder else build(settings.encoder, obs_dim)
    with torch.no_grad():  # also initializes lazy layers
        features, own = (int(each(torch.zeros(2, obs_dim)).shape[-1]) for each in (of_critics, of_actor))
    inputs = features if settings.shares_encoder else own
    actor = Actor(inputs, settings.action_low, settings.action_high, widths, layer_norm, of_actor)
    action_dim = len(settings.action_low)
    return actor, Critics(features, action_dim, widths, settings.num_critics, layer_norm, of_critics)


def register_box(actor: nn.Module, action_low: Sequence[float], action_high: Sequence[float]) -> None:
    """Register half the width of the action box as `scale` and its middle as `centre`, (action_dim,) each."""
    low, high = (torch.tensor(bounds, dtype=torch.float32) for bounds in (action_low, action_high))
    actor.register_buffer("scale", (high - low) / 2)
    actor.register_buffer("centre", (high + low) / 2)

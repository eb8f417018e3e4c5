"""The actor and the critics (appendix C of the paper: two hidden layers with ReLU)."""

from collections.abc import Sequence
from itertools import pairwise, repeat

import torch
from torch import Tensor, nn

from td3_lightning.algorithm.encoders import build, check_have_own_weights
from td3_lightning.algorithm.ensemble import (
    EnsembleLayerNorm,
    EnsembleLinear,
    EnsembleReLU,
    are_separable,
    compute,
    members,
)
from td3_lightning.algorithm.network_checks import has_hooks
from td3_lightning.algorithm.settings import TD3Settings
from td3_lightning.errors import UsageError, refuse, require_bool, require_floats, require_int, require_ints


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

    Raises:
        UsageError: The box is empty or not finite, or a width is smaller than 1.
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
        low, high = action_bounds(action_low, action_high)
        layer_norm = require_bool("layer_norm", layer_norm)
        self.encoder = _module(encoder)
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
        """Return actions (batch, action_dim) for observations (batch, obs_dim), in the environment's units."""
        return self.centre + self.scale * torch.tanh(self.layers(self.encoder(obs)))


class EncoderCopies(nn.ModuleList):
    """Encoders of the same shape with their own weights, one for each critic."""

    def forward(self, obs: Tensor) -> Tensor:
        """Return each encoder's features, (N, batch, features), for observations (batch, obs_dim)."""
        return torch.stack([encoder(obs) for encoder in self])


class Critics(nn.Module):
    """N independent Q-functions on the first axis; the paper's twins are `num_critics=2`.

    `forward` takes the features that `encoder` computes, so that one call of the encoder serves all critics. They are
    (batch, obs_dim), or (N, batch, obs_dim) from `EncoderCopies`. Without an encoder, they are the observations.

    Args:
        obs_dim: Numbers in an observation, or features of the encoder.
        action_dim: Numbers in an action.
        hidden_dims: Width of each hidden layer.
        num_critics: Number of Q-functions, N.
        layer_norm: Whether each hidden layer is normalized before its ReLU.
        encoder: Network from observations to features, trained by the critic loss. None means no encoder.

    Raises:
        UsageError: A width or `num_critics` is smaller than 1.
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
        self.encoder = _module(encoder)
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise([obs_dim + action_dim, *hidden_dims]):
            layers.append(EnsembleLinear(num_critics, fan_in, fan_out))
            if layer_norm:
                layers.append(EnsembleLayerNorm(num_critics, fan_out))
            layers.append(EnsembleReLU())
        last = [obs_dim + action_dim, *hidden_dims][-1]
        self.layers = nn.ModuleList([*layers, EnsembleLinear(num_critics, last, 1)])
        self.num_critics = num_critics

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Return Q-values (num_critics, batch) for features and actions (batch, action_dim)."""
        has_copies = features.dim() > action.dim()
        own_action = action.expand(self.num_critics, *action.shape) if has_copies else action
        inputs = torch.cat([features, own_action], dim=-1)
        if not self._is_batched(inputs):
            each = inputs.unbind() if has_copies else repeat(inputs)
            pairs = zip(each, members(self.layers), strict=False)  # both without end, if the critics share inputs
            return torch.stack([compute(one, layers).squeeze(-1) for one, layers in pairs])
        hidden = inputs.expand(self.num_critics, -1, -1)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden.squeeze(-1)

    def q1(self, features: Tensor, action: Tensor) -> Tensor:
        """Return the Q-values (batch,) of the first critic, which the actor maximizes."""
        features = features[0] if features.dim() > action.dim() else features
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


def encode_first(encoder: nn.Module, obs: Tensor) -> Tensor:
    """Return the features (batch, features) of the encoder of the first critic for observations (batch, obs_dim)."""
    features: Tensor = encoder[0](obs) if isinstance(encoder, EncoderCopies) else encoder(obs)
    return features


def build_networks(settings: TD3Settings) -> tuple[Actor, Critics]:
    """Build the actor and the critics with fresh parameters, and their encoders, shared or separate."""
    obs_dim, action_dim = settings.obs_dim, len(settings.action_low)
    critic_encoder = _critic_encoder(settings)
    actor_encoder = nn.Identity() if settings.shares_encoder else build(settings.encoder, obs_dim)
    copies = critic_encoder if isinstance(critic_encoder, EncoderCopies) else [critic_encoder]
    check_have_own_weights([actor_encoder, *copies])
    features = _num_features(critic_encoder, obs_dim)
    actor_features = features if settings.shares_encoder else _num_features(actor_encoder, obs_dim)
    widths, layer_norm = settings.hidden_dims, settings.layer_norm
    critic_widths = widths if settings.critic_hidden_dims is None else settings.critic_hidden_dims
    actor = Actor(actor_features, settings.action_low, settings.action_high, widths, layer_norm, actor_encoder)
    critics = Critics(features, action_dim, critic_widths, settings.num_critics, layer_norm, critic_encoder)
    return actor, critics


def _critic_encoder(settings: TD3Settings) -> nn.Module:
    """Build the encoder that all critics share, or one for each of them."""
    if settings.critic_encoder is None:
        return build(settings.encoder, settings.obs_dim)
    copies = range(settings.num_critics)
    return EncoderCopies(build(settings.critic_encoder, settings.obs_dim, "critic_encoder") for _ in copies)


def _module(encoder: nn.Module | None) -> nn.Module:
    """Return an encoder, or an identity if there is none."""
    if encoder is not None and not isinstance(encoder, nn.Module):
        raise refuse("encoder", "a module", encoder, "Use Trunk([256]).build(obs_dim), for example, or remove it.")
    return encoder or nn.Identity()


def _num_features(encoder: nn.Module, obs_dim: int) -> int:
    one = encoder[0] if isinstance(encoder, EncoderCopies) else encoder
    with torch.no_grad():
        shape: tuple[int, ...] = tuple(getattr(one(torch.zeros(2, obs_dim)), "shape", ()))
    if len(shape) != 2:
        raise UsageError(
            f"features of an encoder must have the shape (batch, features), got {shape} for 2 observations. Use "
            "nn.Flatten() as its last layer, for example."
        )
    return shape[-1]


def action_bounds(action_low: Sequence[float], action_high: Sequence[float]) -> tuple[Tensor, Tensor]:
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

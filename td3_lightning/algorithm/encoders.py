"""Encoders: networks between the observations and the layers of the actor and the critics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from td3_lightning.errors import UsageError, refuse, require_bool, require_ints
from td3_lightning.serialization.configurable import Configurable, from_config


class Encoder(Configurable, ABC):
    """Settings of a network that computes features of observations, and the method that builds it.

    It serves all critics, and their loss trains it. The actor either sees the same features without training them, or
    has its own network. Layers such as BatchNorm, Dropout and RReLU are refused, because the actor also acts in
    training mode.
    """

    shared = True  # whether the actor uses the critics' features; a subclass may make it an argument

    @abstractmethod
    def build(self, obs_dim: int) -> nn.Module:
        """Build a network with fresh parameters from observations (batch, obs_dim) to features (batch, features)."""


class Trunk(Encoder):
    """Linear layers, each followed by a ReLU.

    Args:
        widths: Width of each layer; the last one's is the number of features.
        shared: Whether the actor uses the critics' features instead of a separate trunk.

    Raises:
        UsageError: A width is smaller than 1.
    """

    def __init__(self, widths: Sequence[int], shared: bool = True) -> None:
        self.widths, self.shared = require_ints("Trunk.widths", widths, 1), require_bool("Trunk.shared", shared)

    def build(self, obs_dim: int) -> nn.Module:
        """Build the layers."""
        pairs = pairwise([obs_dim, *self.widths])
        return nn.Sequential(*(layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())))


def build(encoder: Encoder | None, obs_dim: int) -> nn.Module:
    """Build the network of an encoder with fresh parameters, or an identity if there is none.

    Raises:
        UsageError: A layer behaves differently in training, where the actor acts too.
    """
    network = nn.Identity() if encoder is None else encoder.build(obs_dim)
    for layer in network.modules():
        rate: Any = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", None)
        drops = isinstance(rate, float) and rate > 0
        if drops or isinstance(layer, _BatchNorm | nn.RReLU) or getattr(layer, "track_running_stats", False):
            raise UsageError(
                f"encoder must behave the same in training and evaluation, got the layer {type(layer).__name__}. Use "
                "LayerNorm, LeakyReLU, or a dropout of 0."
            )
    return network


def as_encoder(name: str, encoder: Encoder | Mapping[str, Any] | None) -> Encoder | None:
    """Return an encoder or None unchanged, and build an encoder from plain data; `name` is the setting."""
    if encoder is None or isinstance(encoder, Encoder):
        return encoder
    made = from_config(Encoder, encoder)  # type: ignore[type-abstract]
    if made is None:
        fix = "Use Trunk(...), or import the class of your own Encoder before a checkpoint that holds it is loaded."
        raise refuse(name, "an Encoder", encoder, fix)
    return made

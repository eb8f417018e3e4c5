"""Encoders: networks of the user's between the observation and the actor's and critics' own layers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from td3_lightning.errors import UsageError, require_bool, require_ints
from td3_lightning.serialization.configurable import Configurable, from_config


class Encoder(Configurable, ABC):
    """How to build a network that turns observations into features.

    All critics see the same features, and their loss trains it. The actor either sees them too, without training them,
    or has a network of its own. BatchNorm and Dropout, which do something else in training, are refused.
    """

    shared = True  # whether the actor sees the critics' features; a subclass may have an argument for it

    @abstractmethod
    def build(self, obs_dim: int) -> nn.Module:
        """A network with fresh weights, from observations (batch, obs_dim), or one (obs_dim,), to features."""


class Trunk(Encoder):
    """Linear layers, each with a ReLU.

    Args:
        widths: Width of each layer; the last one's is the number of features.
        shared: Whether the actor sees the critics' features, or has such a trunk of its own.
    """

    def __init__(self, widths: Sequence[int], shared: bool = True) -> None:
        self.widths, self.shared = require_ints("Trunk.widths", widths, 1), require_bool("Trunk.shared", shared)
        if not self.widths:
            raise UsageError("Trunk.widths must have at least one width, got []. Use [256], for example.")

    def build(self, obs_dim: int) -> nn.Module:
        """The layers."""
        pairs = pairwise([obs_dim, *self.widths])
        return nn.Sequential(*(layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())))


def build(encoder: Encoder | None, obs_dim: int) -> nn.Module:
    """An encoder's network with fresh weights, or what changes nothing where there is none.

    Raises:
        UsageError: A layer of it does something else in training, in which the actor acts, too.
    """
    network = nn.Identity() if encoder is None else encoder.build(obs_dim)
    for layer in network.modules():
        if isinstance(layer, _BatchNorm | _DropoutNd):
            raise UsageError(
                f"An encoder acts in training as it does later, but {type(layer).__name__} came, which does not; "
                "take LayerNorm, or nothing, in its place."
            )
    return network


def as_encoder(encoder: Encoder | Mapping[str, Any] | None) -> Encoder | None:
    """An encoder, or none, stays itself; plain data becomes what it was made from."""
    made = encoder if encoder is None or isinstance(encoder, Encoder) else from_config(Encoder, encoder)  # type: ignore[type-abstract]
    if encoder is not None and made is None:
        raise UsageError(
            f"An encoder is wanted, but {encoder!r} came; give Trunk(...), or an Encoder of yours, imported before a "
            "checkpoint that holds it is loaded."
        )
    return made

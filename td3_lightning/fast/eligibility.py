"""Checks, once per epoch, that hooks, layers and the Trainer are those that the fast implementations support."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from td3_lightning.algorithm.ensemble import EnsembleLayerNorm, EnsembleLinear, EnsembleReLU, has_hooks
from td3_lightning.algorithm.networks import Actor, Critics
from td3_lightning.algorithm.settings import TD3Settings

EPSILON = nn.LayerNorm(1).eps
PLAIN_LAYERS: dict[type, tuple[type, type, type]] = {
    Actor: (nn.Linear, nn.LayerNorm, nn.ReLU),
    Critics: (EnsembleLinear, EnsembleLayerNorm, EnsembleReLU),
}
PLAIN_PRECISION = (Precision, DoublePrecision, HalfPrecision, MixedPrecision)  # on a CPU they step as usual


def is_plain(network: Any, settings: TD3Settings) -> bool:
    """Return whether a network has the layers of `networks.py` in their order, and no encoder, hook or other weight."""
    if type(network) not in PLAIN_LAYERS or type(network.encoder) is not nn.Identity:
        return False
    if type(network.layers) not in (nn.Sequential, nn.ModuleList):  # another container may compute something else
        return False
    linear, norm, relu = PLAIN_LAYERS[type(network)]
    types = list(map(type, network.layers))
    hidden = [linear, norm, relu] if settings.layer_norm else [linear, relu]
    in_order = types == [*hidden * (len(types) // len(hidden)), linear]
    in_layers = sum(len(layer._parameters) for layer in network.layers)
    return (
        in_order
        and in_layers == len(list(network.parameters()))
        and all(None not in layer._parameters.values() for layer in network.layers)
        and all(getattr(layer, "eps", EPSILON) == EPSILON for layer in network.layers)
        and not any(map(has_hooks, network.modules()))
        and not any(callable(value) for each in network.modules() for value in vars(each).values())  # replaced methods
    )


def overrides(owner: object, kind: type, *names: str) -> bool:
    """Return whether an object has another implementation than its class `kind` of one of these methods."""
    return any(getattr(getattr(owner, name), "__func__", None) is not getattr(kind, name) for name in names)


def has_trainer(module: L.LightningModule) -> bool:
    """Return whether a Trainer uses the module. Lightning 2.6 has no public way to ask."""
    return module._trainer is not None


def has_hook(module: L.LightningModule, *hooks: str) -> bool:
    """Return whether the module or a callback implements one of these Lightning hooks."""
    callbacks = module.trainer.callbacks if has_trainer(module) else []  # type: ignore[attr-defined]
    return overrides(module, L.LightningModule, *hooks) or any(overrides(each, Callback, *hooks) for each in callbacks)


def has_plain_backward(module: L.LightningModule) -> bool:
    """Return whether nothing hooks into backward passes. A module without a Trainer may have its own backward pass."""
    if has_hook(module, "on_before_backward", "on_after_backward"):
        return False
    return not has_trainer(module) or not overrides(
        module, L.LightningModule, "manual_backward", "backward", "optimizers"
    )


def is_plain_trainer(trainer: Any) -> bool:
    """Return whether a Trainer runs one process, in a precision whose steps are the usual ones."""
    return type(trainer.strategy) is SingleDeviceStrategy and type(trainer.precision_plugin) in PLAIN_PRECISION

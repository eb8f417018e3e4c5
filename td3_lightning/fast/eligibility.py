"""Checks that a fast path may replace the usual one: no hook is overridden and the networks are TD3's own.

They run once per epoch.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn

from td3_lightning.algorithm.ensemble import EnsembleLayerNorm, EnsembleLinear, EnsembleReLU
from td3_lightning.algorithm.network_checks import has_hooks
from td3_lightning.algorithm.networks import Actor, Critics
from td3_lightning.algorithm.settings import TD3Settings

EPSILON = nn.LayerNorm(1).eps
PLAIN_LAYERS: dict[type, tuple[type, type, type]] = {
    Actor: (nn.Linear, nn.LayerNorm, nn.ReLU),
    Critics: (EnsembleLinear, EnsembleLayerNorm, EnsembleReLU),
}
PLAIN_PRECISION = (Precision, DoublePrecision, HalfPrecision, MixedPrecision)  # on a CPU they step as usual


class NetworkSnapshot:
    """Layers, parameters and hooks of networks, to detect later whether any was replaced or added.

    Args:
        networks: The networks.
    """

    def __init__(self, networks: list[nn.Module]) -> None:
        self.networks = networks
        self.layers, self.pointers = _layers(networks), _pointers(networks)

    def is_valid(self, networks: list[nn.Module]) -> bool:
        """Return whether these are the same networks, with the same layers and parameters, and without hooks."""
        layers = _layers(networks)
        same = networks == self.networks and layers == self.layers and _pointers(networks) == self.pointers
        return same and _is_unhooked(layers)


def is_plain(network: Any, settings: TD3Settings) -> bool:
    """Return whether a network has the layers of `networks.py` in their order, and no encoder, hook or other weight."""
    if type(network) not in PLAIN_LAYERS or type(network.encoder) is not nn.Identity:
        return False
    if type(network.layers) not in (nn.Sequential, nn.ModuleList):  # another container may compute something else
        return False
    linear, norm, relu = PLAIN_LAYERS[type(network)]
    hidden = [linear, norm, relu] if settings.layer_norm else [linear, relu]
    types = list(map(type, network.layers))
    in_order = types == [*hidden * (len(types) // len(hidden)), linear]
    return in_order and _has_plain_weights(network) and _is_unhooked(_layers([network]))


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


def is_plain_trainer(trainer: Any) -> bool:
    """Return whether a Trainer runs one process, in a precision whose steps are the usual ones."""
    return type(trainer.strategy) is SingleDeviceStrategy and type(trainer.precision_plugin) in PLAIN_PRECISION


def _has_plain_weights(network: Any) -> bool:
    """Return whether the layers of a network are plain, and each of its weights belongs to one of them."""
    in_layers = sum(len(layer._parameters) for layer in network.layers)
    return all(map(_is_plain_layer, network.layers)) and in_layers == len(list(network.parameters()))


def _is_plain_layer(layer: nn.Module) -> bool:
    return None not in layer._parameters.values() and getattr(layer, "eps", EPSILON) == EPSILON


def _is_unhooked(modules: Sequence[Any]) -> bool:
    return not any(map(has_hooks, modules))


def _layers(networks: Sequence[nn.Module]) -> list[nn.Module]:
    return [module for network in networks for module in network.modules()]


def _pointers(networks: Sequence[nn.Module]) -> list[int]:
    tensors = chain.from_iterable((*network.parameters(), *network.buffers()) for network in networks)
    return list(map(Tensor.data_ptr, tensors))

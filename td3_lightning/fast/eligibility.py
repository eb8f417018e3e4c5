"""Checks whether hooks are overridden and whether networks are unchanged, so that a fast path applies."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from torch import Tensor, nn

from td3_lightning.algorithm.networks import Actor, Critics, EnsembleLayerNorm, EnsembleLinear, ReLU

if TYPE_CHECKING:
    from td3_lightning.algorithm.td3 import TD3


EPSILON = nn.LayerNorm(1).eps  # what keeps a normalisation from dividing by 0


PLAIN_LAYERS = {
    nn.Linear,
    EnsembleLinear,
    nn.LayerNorm,
    EnsembleLayerNorm,
    nn.ReLU,
    ReLU,
}  # the layers that are written out


class Unchanged:
    """Networks as they are, to see within microseconds whether they still are when they are used.

    Args:
        networks: The networks, without hooks.
    """

    def __init__(self, networks: list[nn.Module]) -> None:
        self.networks = networks
        modules = [module for network in networks for module in network.modules()]
        self.children: list[dict[str, Any]] = [module._modules for module in modules if module._modules]
        self.tensors: list[dict[str, Any]] = [module._parameters for module in modules if module._parameters]
        self.tensors += [module._buffers for module in modules if module._buffers]  # an actor's box
        self.hooks = [hooks for module in modules for hooks in _hooks(module)]
        self.layers = self._layers()
        self.places = self._places()

    def are(self, networks: list[nn.Module]) -> bool:
        """Whether these are those, of the same layers, still without hooks, with their weights where they were."""
        same = networks == self.networks and self._layers() == self.layers
        return same and self._places() == self.places and not any(self.hooks)

    def _layers(self) -> list[nn.Module]:
        return list(chain.from_iterable(map(dict.values, self.children)))

    def _places(self) -> list[int]:
        return list(map(Tensor.data_ptr, chain.from_iterable(map(dict.values, self.tensors))))


def is_plain(network: Any) -> bool:
    """Whether it is one of `networks.py`, and so is each of its layers, as it was made."""
    return type(network) in (Actor, Critics) and _is_unhooked([network]) and all(map(_is_usual, network.layers))


def _is_usual(layer: nn.Module) -> bool:
    whole = None not in layer._parameters.values() and getattr(layer, "eps", EPSILON) == EPSILON
    return type(layer) in PLAIN_LAYERS and whole and _is_unhooked([layer])


def _is_unhooked(modules: Sequence[nn.Module]) -> bool:
    return not any(hooks for module in modules for hooks in _hooks(module))


def _hooks(module: Any) -> tuple[Any, ...]:
    """What is called when the module is, or when its gradients are worked out; filled in place later."""
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks


PLAIN_PRECISION = (Precision, DoublePrecision, HalfPrecision, MixedPrecision)  # they take a step as it is, on a CPU


def overrides(owner: object, kind: type, *names: str) -> bool:
    """Whether an object has one of these methods otherwise than its kind."""
    return any(getattr(getattr(owner, name), "__func__", None) is not getattr(kind, name) for name in names)


def has_hook(module: "TD3", *hooks: str) -> bool:
    """Whether the module or a callback has one of these hooks."""
    callbacks = [] if module._trainer is None else module.trainer.callbacks  # type: ignore[attr-defined]
    return overrides(module, L.LightningModule, *hooks) or any(overrides(each, Callback, *hooks) for each in callbacks)

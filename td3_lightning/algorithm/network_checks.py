"""Checks of an agent's networks, which a subclass may build or replace."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from td3_lightning.errors import UsageError, shown

# Type of the weights by the Trainer's precision. Other precisions have layers of their own.
WEIGHT_TYPES = {
    **dict.fromkeys(("32-true", "16-mixed", "bf16-mixed"), torch.float32),
    "64-true": torch.float64,
    "bf16-true": torch.bfloat16,
}


def check_actor(actor: nn.Module, name: str = "actor") -> None:
    """Raise `UsageError` if an actor has no `scale` or `centre`, which acting and the target noise use."""
    for attribute, meaning in (("scale", "half the action range"), ("centre", "the middle of the action range")):
        value = getattr(actor, attribute, None)
        if not isinstance(value, Tensor):
            got = shown(value) if hasattr(actor, attribute) else f"a {type(actor).__name__} without it"
            raise UsageError(
                f"{name}.{attribute} must be a tensor, {meaning}, got {got}. Register it as a buffer, as "
                "td3_lightning.Actor does."
            )


def check_weight_types(module: nn.Module, networks: Iterable[str], precision: str) -> None:
    """Raise `UsageError` if trainable weights, or the action ranges of the actor, do not have the type of a precision.

    Args:
        module: Agent.
        networks: Names of the networks.
        precision: Precision of the Trainer.
    """
    expected = WEIGHT_TYPES.get(precision)
    tensors = {
        f"{name}.{weight}": value
        for name in networks
        for weight, value in module.get_submodule(name).named_parameters()
        if value.requires_grad
    }
    tensors |= {f"actor.{name}": getattr(module.actor, name) for name in ("scale", "centre")}
    for name, value in tensors.items():
        if expected is not None and value.is_floating_point() and value.dtype != expected:
            other = " or trainer.precision 64-true" if value.dtype == torch.float64 else ""
            raise UsageError(
                f"{name} must be {_short(expected)} with trainer.precision {precision}, got {_short(value.dtype)}. Use "
                f"agent.to({expected}){other}."
            )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def has_hooks(module: nn.Module) -> bool:
    """Return whether a forward or backward hook is registered on a module, or its `forward` is replaced."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks) or "forward" in vars(module)

"""Adam's step without the way to it, where nobody waits on that way.

From `optimizer.step()` to torch's fused Adam it goes through Lightning's hooks, its precision and torch's own hooks and
lookups, which take longer than Adam itself does for networks of the usual size. A reader may skip this file.
"""

from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from td3_lightning.hooks import PLAIN, is_awaited

if TYPE_CHECKING:
    from td3_lightning.module import TD3

UNUSUAL = ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay")


def is_plain_step(module: "TD3") -> bool:
    """Whether the trainer, its plugins, its callbacks and the module have nothing to add to an optimizer's step."""
    if is_awaited(module, "on_before_optimizer_step"):
        return False
    if module._trainer is None:
        return True
    trainer = module.trainer
    return type(trainer.precision_plugin) in PLAIN and type(trainer.strategy) is SingleDeviceStrategy


@torch.no_grad()
def step_directly(optimizer: Optimizer | LightningOptimizer) -> bool:
    """Takes the step of a fused Adam, to the same bits, and says whether it did.

    It leaves other optimizers alone, those with hooks or without gradients, and the first step, which makes the memory.
    """
    adam = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
    if type(adam) is not Adam or "step" in vars(adam) or _has_hooks(adam):
        return False
    if not all(_is_usual(group) and _is_under_way(group, adam) for group in adam.param_groups):
        return False
    if isinstance(optimizer, LightningOptimizer):
        optimizer._on_before_step()
    for group in adam.param_groups:
        _step(group, [adam.state[weight] for weight in group["params"]])
    if isinstance(optimizer, LightningOptimizer):
        optimizer._on_after_step()
    return True


def _has_hooks(adam: Adam) -> bool:
    """Whether something is called before or after its steps."""
    every = _global_optimizer_pre_hooks, _global_optimizer_post_hooks
    return any((*every, adam._optimizer_step_pre_hooks, adam._optimizer_step_post_hooks))


def _is_usual(group: dict[str, Any]) -> bool:
    return group["fused"] and not any(group.get(setting) for setting in UNUSUAL)


def _is_under_way(group: dict[str, Any], adam: Adam) -> bool:
    """Whether every weight has a gradient, and Adam a memory of it."""
    return all(weight.grad is not None and adam.state.get(weight) for weight in group["params"])


def _step(group: dict[str, Any], memory: list[dict[str, Tensor]]) -> None:
    """Adam for one group of weights, all of which have a gradient and a memory."""
    weights: list[Tensor] = group["params"]
    counts = [each["step"] for each in memory]
    torch._foreach_add_(counts, 1)
    beta1, beta2 = group["betas"]
    torch._fused_adam_(
        weights,
        [cast(Tensor, weight.grad) for weight in weights],
        [each["exp_avg"] for each in memory],
        [each["exp_avg_sq"] for each in memory],
        [],
        counts,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )

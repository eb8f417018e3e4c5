"""Fused Adam step that skips per-step hooks when none is registered, and the flushing of denormal numbers."""

from collections.abc import Sequence
from itertools import chain, repeat
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from td3_lightning.fast.eligibility import PLAIN_PRECISION, has_hook

if TYPE_CHECKING:
    from td3_lightning.algorithm.td3 import TD3


UNSUPPORTED_OPTIONS = ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay")


def is_plain_step(module: "TD3") -> bool:
    """Whether the trainer, its plugins, its callbacks and the module have nothing to add to an optimizer's step."""
    if has_hook(module, "on_before_optimizer_step"):
        return False
    if module._trainer is None:
        return True
    trainer = module.trainer
    return type(trainer.precision_plugin) in PLAIN_PRECISION and type(trainer.strategy) is SingleDeviceStrategy


class FastAdam:
    """Steps of fused Adams, to the same bits."""

    def __init__(self) -> None:
        self._memories: dict[Adam, AdamState] = {}

    def step(self, optimizer: Optimizer | LightningOptimizer) -> bool:
        """Takes an optimizer's step, and says whether it did.

        It leaves other optimizers alone, those with hooks or without gradients, and the first step, which makes their
        memory.
        """
        wrapper = optimizer if isinstance(optimizer, LightningOptimizer) else None
        adam = wrapper.optimizer if wrapper else optimizer
        if type(adam) is not Adam or "step" in vars(adam) or _has_hooks(adam):
            return False
        if not all(map(_is_usual, adam.param_groups)) or not (memory := self._memory_of(adam)):
            return False
        gradients: list[list[Any]] = [[weight.grad for weight in of_group.weights] for of_group in memory.of_groups]
        if any(map(is_, chain.from_iterable(gradients), repeat(None))):
            return False
        if wrapper:
            wrapper._on_before_step()
        with torch.no_grad():
            for group, of_group, of_weights in zip(adam.param_groups, memory.of_groups, gradients, strict=True):
                _step(group, of_group, of_weights)
        if wrapper:
            wrapper._on_after_step()
        return True

    def _memory_of(self, adam: Adam) -> "AdamState | None":
        """What it keeps, if that is under way for all weights."""
        memory = self._memories.get(adam)
        if memory is None or not memory.is_of(adam):
            if not all(adam.state.get(weight) for group in adam.param_groups for weight in group["params"]):
                return None
            memory = self._memories[adam] = AdamState(adam)
        return memory


class AdamState:
    """What an Adam keeps, in the order of its weights, as looking it up in every step takes longer.

    Args:
        adam: It has taken a step.
    """

    def __init__(self, adam: Adam) -> None:
        self.entries = list(adam.state.values())
        self.of_groups = [ParamGroupState(group["params"], adam.state) for group in adam.param_groups]

    def is_of(self, adam: Adam) -> bool:
        """Whether that is what it keeps."""
        groups = adam.param_groups
        return (
            _are(self.entries, list(adam.state.values()))
            and len(self.of_groups) == len(groups)
            and all(memory.is_of(group["params"]) for memory, group in zip(self.of_groups, groups, strict=True))
        )


class ParamGroupState:
    """What an Adam keeps of some weights.

    The counts of their steps become parts of one tensor, so that they are counted together.

    Args:
        weights: The weights.
        state: Adam's entries.
    """

    def __init__(self, weights: Sequence[Tensor], state: Any) -> None:
        self.weights = list(weights)
        self.entries = [state[weight] for weight in weights]
        self.count = torch.stack([entry["step"] for entry in self.entries])
        self.counts = list(self.count.unbind())
        for entry, count in zip(self.entries, self.counts, strict=True):
            entry["step"] = count

    def is_of(self, weights: Sequence[Tensor]) -> bool:
        """Whether it is of these, and they are counted here."""
        return _are(self.weights, weights) and _are(self.counts, [entry["step"] for entry in self.entries])


def _has_hooks(adam: Adam) -> bool:
    """Whether something is called before or after its steps."""
    every = _global_optimizer_pre_hooks, _global_optimizer_post_hooks
    return any((*every, adam._optimizer_step_pre_hooks, adam._optimizer_step_post_hooks))


def _is_usual(group: dict[str, Any]) -> bool:
    """Whether Adam is a fused one as it was published."""
    return group["fused"] and not any(map(group.get, UNSUPPORTED_OPTIONS))


def _are(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether they are the very same objects."""
    return len(some) == len(others) and all(map(is_, some, others))


def _step(group: dict[str, Any], memory: ParamGroupState, gradients: list[Tensor]) -> None:
    """Adam for one group of weights, all of which have a gradient and a memory."""
    memory.count.add_(1)
    beta1, beta2 = group["betas"]
    torch._fused_adam_(
        memory.weights,
        gradients,
        [entry["exp_avg"] for entry in memory.entries],
        [entry["exp_avg_sq"] for entry in memory.entries],
        [],
        memory.counts,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


FLUSH_INTERVAL = 50  # updates, in which few means fade so far


TINY = torch.finfo(torch.float32).tiny  # float32 has full precision from here on


@torch.no_grad()
def flush_denormals(optimizer: Optimizer | LightningOptimizer) -> None:
    """Sets what Adam remembers of a weight to 0 where it is too small to move it.

    No weight above 1e-22 changes by it: Adam divides by no less than its `eps`, 1e-8, so that the step is below 1e-29.
    Other optimizers are left alone; one that steps by a mean's sign goes as far for the smallest.
    """
    adam = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
    if not isinstance(adam, Adam):
        return
    for state in adam.state.values():
        for memory in state.values():
            if isinstance(memory, torch.Tensor) and memory.is_floating_point() and memory.ndim:
                torch.hardshrink(memory, TINY, out=memory)

"""Adam's step without the way to it, where nobody waits on that way.

From `optimizer.step()` to torch's fused Adam it goes through Lightning's hooks, its precision and torch's own hooks and
lookups, which take longer than Adam itself does for networks of the usual size. A reader may skip this file.
"""

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


class DirectAdam:
    """Steps of fused Adams, to the same bits."""

    def __init__(self) -> None:
        self._memories: dict[Adam, Memory] = {}

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

    def _memory_of(self, adam: Adam) -> "Memory | None":
        """What it keeps, if that is under way for all weights."""
        memory = self._memories.get(adam)
        if memory is None or not memory.is_of(adam):
            if not all(adam.state.get(weight) for group in adam.param_groups for weight in group["params"]):
                return None
            memory = self._memories[adam] = Memory(adam)
        return memory


class Memory:
    """What an Adam keeps, in the order of its weights, as looking it up in every step takes longer.

    Args:
        adam: It has taken a step.
    """

    def __init__(self, adam: Adam) -> None:
        self.entries = list(adam.state.values())
        self.of_groups = [GroupMemory(group["params"], adam.state) for group in adam.param_groups]

    def is_of(self, adam: Adam) -> bool:
        """Whether that is what it keeps."""
        groups = adam.param_groups
        return (
            _are(self.entries, list(adam.state.values()))
            and len(self.of_groups) == len(groups)
            and all(memory.is_of(group["params"]) for memory, group in zip(self.of_groups, groups, strict=True))
        )


class GroupMemory:
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
    return group["fused"] and not any(map(group.get, UNUSUAL))


def _are(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether they are the very same objects."""
    return len(some) == len(others) and all(map(is_, some, others))


def _step(group: dict[str, Any], memory: GroupMemory, gradients: list[Tensor]) -> None:
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

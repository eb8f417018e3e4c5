"""Fused Adam step that skips per-step hooks when none is registered."""

from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import Any

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.fast.eligibility import has_hook, has_trainer, is_plain_trainer

UNSUPPORTED_OPTIONS = ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay")


def supports_fast_step(module: TD3, optimizer: Optimizer | LightningOptimizer) -> bool:
    """Return whether the optimizer is a plain fused Adam and nothing hooks into its step."""
    adam = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
    if type(adam) is not Adam or "step" in vars(adam) or has_hook(module, "on_before_optimizer_step"):
        return False
    everywhere = _global_optimizer_pre_hooks, _global_optimizer_post_hooks
    if any((*everywhere, adam._optimizer_step_pre_hooks, adam._optimizer_step_post_hooks)):
        return False
    if not all(group["fused"] and not any(map(group.get, UNSUPPORTED_OPTIONS)) for group in adam.param_groups):
        return False
    return not has_trainer(module) or is_plain_trainer(module.trainer)


class FastAdam:
    """Take the steps of a fused Adam with the same results, without its hooks and lookups.

    Args:
        optimizer: An optimizer that `supports_fast_step` accepts. Its parameters have gradients at each step.
    """

    def __init__(self, optimizer: Optimizer | LightningOptimizer) -> None:
        self.optimizer = optimizer
        self.adam: Any = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        self.groups: list[ParamGroupState] = []
        self.parameters: list[Tensor] = []
        self.state: list[Any] = []  # of each parameter, then its values: what a user may replace

    def step(self) -> None:
        """Take a step; the first one, which creates Adam's state, is Adam's own."""
        if not self._is_current() and not self._find_state():
            self.optimizer.step()
            return
        counted = isinstance(self.optimizer, LightningOptimizer)
        if counted:
            self.optimizer._on_before_step()  # type: ignore[union-attr]  # Lightning 2.6: counts the steps
        with torch.inference_mode():
            for options, group in zip(self.adam.param_groups, self.groups, strict=True):
                group.step(options)
        if counted:
            self.optimizer._on_after_step()  # type: ignore[union-attr]

    def _is_current(self) -> bool:
        """Return whether no part of Adam's state was replaced, for example by `state.clear()` or `load_state_dict`."""
        if not self.parameters:
            return False
        state = self._current_state()
        return len(state) == len(self.state) and all(map(is_, state, self.state))

    def _current_state(self) -> list[Any]:
        """Return what Adam holds: the state of each parameter, then the values of all of them."""
        entries = list(map(self.adam.state.get, self.parameters))
        return entries if None in entries else [*entries, *chain.from_iterable(map(dict.values, entries))]

    def _find_state(self) -> bool:
        """Look up Adam's state; return whether it exists for all parameters."""
        state, groups = self.adam.state, self.adam.param_groups
        if not all(state.get(parameter) for group in groups for parameter in group["params"]):
            return False
        self.groups = [ParamGroupState(group["params"], state) for group in groups]
        self.parameters = [parameter for group in groups for parameter in group["params"]]
        self.state = self._current_state()
        return True


class ParamGroupState:
    """Adam's state of a parameter group, in the order of the parameters.

    The step counts become views of one tensor, so that they are incremented together.
    """

    def __init__(self, parameters: Sequence[Tensor], state: Any) -> None:
        self.parameters = list(parameters)
        entries = [state[parameter] for parameter in parameters]
        self.exp_avgs = [entry["exp_avg"] for entry in entries]
        self.exp_avg_sqs = [entry["exp_avg_sq"] for entry in entries]
        self.count = torch.stack([entry["step"] for entry in entries])
        self.counts = list(self.count.unbind())
        for entry, count in zip(entries, self.counts, strict=True):
            entry["step"] = count

    def step(self, options: dict[str, Any]) -> None:
        """Take Adam's step with the options of the parameter group."""
        self.count.add_(1)
        beta1, beta2 = options["betas"]
        torch._fused_adam_(
            self.parameters,
            [parameter.grad for parameter in self.parameters],  # type: ignore[misc]  # all have one
            self.exp_avgs,
            self.exp_avg_sqs,
            [],
            self.counts,
            lr=options["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=options["weight_decay"],
            eps=options["eps"],
            amsgrad=False,
            maximize=False,
        )

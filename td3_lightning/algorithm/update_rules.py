"""Registry of update rules: other ways to compute the same update."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

from td3_lightning.errors import refuse

if TYPE_CHECKING:
    from torch import Tensor

    from td3_lightning.replay.batch import Batch

_FACTORIES: dict[str, str] = {}  # value of `gradients` -> "module:function"


class UpdateRule(Protocol):
    """Compute the update of TD3; `TD3` itself is the rule that uses autograd."""

    def update_critics(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Take a step of the critics; return the loss and the Q-values (N, batch) before the step."""

    def update_actor(self, batch: Batch) -> Tensor:
        """Take a step of the actor; return the loss before the step."""

    def update_targets(self) -> None:
        """Move the targets towards the online networks."""


def register_update_rule(gradients: str, factory: str) -> None:
    """Register a factory "module:function", imported on first use, for a value of `gradients`.

    The function takes the TD3 module and the rule of the previous epoch. It returns a rule, or None if the rule does
    not support the module. `Gradients` in `algorithm/settings.py` lists the values that `gradients` accepts.
    """
    _FACTORIES[gradients] = factory


def check_registered(gradients: str) -> None:
    """Raise `UsageError` for `compiled` without its rule. Without a rule, `manual` uses autograd."""
    if gradients == "compiled" and gradients not in _FACTORIES:
        constraint = "manual or autograd without the package td3_lightning.fast"
        raise refuse("model.gradients", constraint, gradients, "Use autograd, or install td3_lightning.fast.")


def find_update_rule(module: object, gradients: str, previous: UpdateRule | None) -> UpdateRule | None:
    """Return the rule registered under `gradients` for a module, or None if none supports it."""
    if gradients not in _FACTORIES:
        return None
    path, name = _FACTORIES[gradients].split(":")
    rule: UpdateRule | None = getattr(importlib.import_module(path), name)(module, previous)
    return rule

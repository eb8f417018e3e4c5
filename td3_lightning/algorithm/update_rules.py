"""Registry of a faster update rule: another way to compute the same update."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from td3_lightning.replay.batch import Batch

_factories: list[str] = []  # "module:function"; the last one is used


class UpdateRule(Protocol):
    """Compute the steps of TD3's networks; `TD3` itself is the rule that anyone can read."""

    def update_critics(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Take a step of the critics; return the loss and the Q-values (N, batch) before the step."""

    def update_actor(self, batch: Batch) -> Tensor:
        """Take a step of the actor; return the loss before the step."""


def register_update_rule(factory: str) -> None:
    """Register a function "module:function" that returns the rule for an agent, or None if it supports none.

    The function is imported on first use and called once per epoch.
    """
    _factories.append(factory)


def find_update_rule(agent: object) -> UpdateRule | None:
    """Return the registered rule for an agent; None without one, or if it does not support the agent."""
    if not _factories:
        return None
    path, name = _factories[-1].split(":")
    rule: UpdateRule | None = getattr(importlib.import_module(path), name)(agent)
    return rule

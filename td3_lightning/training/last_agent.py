"""Detect that a callback or its state belongs to another agent."""

import weakref
from collections.abc import Callable
from typing import Any


class LastAgent:
    """Remember the agent and the data module of a callback's last fit, without keeping them alive.

    A copy remembers none, because references cannot be copied.
    """

    def __init__(self) -> None:
        self._last: list[Callable[[], Any]] = []

    def __reduce__(self) -> tuple[type["LastAgent"], tuple[()]]:
        """Return a copy without references."""
        return LastAgent, ()

    def has_changed(self, agent: Any, *others: Any) -> bool:
        """Return whether the agent is new, or one of the objects differs from that of the last call; remember them."""
        objects = agent, *others
        changed = any(last() is not each for last, each in zip(self._last, objects, strict=False))
        self._last = [weakref.ref(each) if each is not None else lambda: None for each in objects]
        return changed or agent.is_new

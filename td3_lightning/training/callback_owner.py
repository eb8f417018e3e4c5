"""Refuse a callback whose state belongs to another agent."""

import weakref
from collections.abc import Sequence
from typing import Any

from lightning.pytorch.callbacks import Callback

from td3_lightning.errors import UsageError

_OWNERS: "weakref.WeakKeyDictionary[Callback, Sequence[Any]]" = weakref.WeakKeyDictionary()


def check_owner(callback: Callback, *objects: Any) -> None:
    """Raise `UsageError` if the last fit of a callback had another agent, or another of the objects."""
    owners = _OWNERS.setdefault(callback, [weakref.ref(each) for each in objects])
    if any(owner() is not each for owner, each in zip(owners, objects, strict=False)):
        name = type(callback).__name__
        kinds = " and ".join(type(each).__name__ for each in objects)
        raise UsageError(
            f"{name} must have the {kinds} of its first fit, got another one, which would continue its state. Use a "
            f"new {name}."
        )

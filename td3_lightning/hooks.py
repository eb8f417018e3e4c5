"""Which of Lightning's hooks there are, so that nobody need ask for the others in every update."""

from typing import TYPE_CHECKING

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision

if TYPE_CHECKING:
    from td3_lightning.module import TD3

PLAIN = (Precision, DoublePrecision, HalfPrecision, MixedPrecision)  # they take a step as it is, on a CPU


def has_own(owner: object, kind: type, *names: str) -> bool:
    """Whether an object has one of these methods otherwise than its kind."""
    return any(getattr(getattr(owner, name), "__func__", None) is not getattr(kind, name) for name in names)


def is_awaited(module: "TD3", *hooks: str) -> bool:
    """Whether the module or a callback has one of these hooks."""
    callbacks = [] if module._trainer is None else module.trainer.callbacks  # type: ignore[attr-defined]
    return has_own(module, L.LightningModule, *hooks) or any(has_own(each, Callback, *hooks) for each in callbacks)

"""Checks of the Collector's state in a checkpoint."""

from typing import Any

import torch

from td3_lightning.serialization import values as form
from td3_lightning.serialization.generator_states import numpy_generator
from td3_lightning.serialization.values import InvalidValueError

MAX_FAILURES = 1_000  # in a row, so that a checkpoint cannot demand an endless number of steps


def _generator(value: Any, name: str) -> None:
    """Check for the state of NumPy's default generator."""
    numpy_generator(value, name)
    if value["bit_generator"] != "PCG64":
        raise InvalidValueError(f"{name}.bit_generator", "'PCG64'", value["bit_generator"])


def _updates_ahead(value: Any, name: str) -> None:
    """Check for the balance of updates. Each start of a run in which the environment fails may add 1."""
    form.number(value, name)
    if not -(2**53) <= value <= MAX_FAILURES:
        raise InvalidValueError(name, f"a number up to {MAX_FAILURES:,}", value)


def _rows(value: Any, name: str) -> None:
    """Check for finite numbers in two axes."""
    form.check_tensor(value, name)
    if value.ndim != 2 or value.dtype != torch.float32 or not value.isfinite().all():
        raise InvalidValueError(name, "finite float32 numbers in rows", value)


def _returns(value: Any, name: str) -> None:
    """Check for finite returns in one axis."""
    form.check_tensor(value, name)
    if value.ndim != 1 or value.dtype != torch.float64 or not value.isfinite().all():
        raise InvalidValueError(name, "finite float64 numbers in one axis", value)


RANK = form.fields(
    {
        "rng": _generator,
        "updates_ahead": _updates_ahead,
        "last_return": form.number,
        "losses": form.by_name(form.scalar),
    },
    {"env_steps": form.optional(form.count), "observations": _rows, "returns": _returns, "running_returns": _returns},
)
COLLECTOR = form.fields({"ranks": form.series(RANK)})

"""Check that networks fit into the memory of the machine, before their weights are allocated."""

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from td3_lightning.errors import UsageError, shown

TRAINING_BYTES = 5 * 4  # per weight, in float32: online, target, gradient, and two moments of Adam


def num_weights(widths: Sequence[int]) -> int:
    """Return the number of weights, without biases, of linear layers between widths."""
    return sum(fan_in * fan_out for fan_in, fan_out in pairwise(widths))


def check_memory(settings: dict[str, Any], weights: int) -> None:
    """Check the memory that is required to train networks, except on Windows, where its size is unknown.

    Args:
        settings: The settings that determine the number of weights.
        weights: Number of weights of the networks, without their targets.

    Raises:
        UsageError: The machine has less memory.
    """
    if not hasattr(os, "sysconf"):
        return
    required, present = TRAINING_BYTES * weights, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if required > present:
        names, values = " and ".join(settings), " and ".join(map(shown, settings.values()))
        raise UsageError(
            f"{names} must be small enough to train in {present / 1e9:.1f} GB, the memory of this machine, got "
            f"{values}, which requires {required / 1e9:,.1f} GB. Use smaller values."
        )

"""Exploration noise: Gaussian noise on greedy actions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from td3_lightning.schedules import Schedule, as_schedule
from td3_lightning.serialization.primitives import to_primitives

Actions = NDArray[np.float32]
MAX_NOISE = 1e6  # relative to half the action range; much larger numbers exceed float32


def with_noise(action: Actions, normal: Actions, std: float, box: tuple[Actions, Actions]) -> Actions:
    """Add noise to actions and clip the sum to the action box.

    Args:
        action: Actions (..., action_dim) in the environment's units.
        normal: Standard normal numbers of the same shape.
        std: Standard deviation of the noise relative to half the action range.
        box: Smallest and largest actions, (action_dim,) each.
    """
    low, high = box
    noisy = action + np.float32(std) * (normal * (high - low) / 2)
    clipped: Actions = np.minimum(np.maximum(noisy, low), high)  # np.clip is slower for small arrays
    return clipped


def as_noise(value: float | Schedule | Mapping[str, Any]) -> Schedule:
    """Convert a number to the schedule of the exploration noise.

    Raises:
        UsageError: The first value is out of range, or a checkpoint cannot hold the schedule.
    """
    noise = as_schedule("exploration_noise", value, least=0, most=MAX_NOISE)
    to_primitives(noise.plain(), "exploration_noise")
    return noise

"""Settings of a replay buffer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from td3_lightning.errors import UsageError, as_float, refuse, require_float, require_int
from td3_lightning.schedules import Constant, Linear, Schedule, as_int_schedule, as_schedule

Array = NDArray[np.float32]
MAX_BATCH_SIZE = 1_000_000
MAX_ENVS = 10_000
MAX_FLOAT32 = float(np.finfo(np.float32).max)
MAX_REWARD_SCALE = 1e10  # squares of larger rewards can exceed float32


@dataclass
class ReplaySettings:
    """Check the settings of a replay buffer; `Replay` describes them.

    Attributes:
        n_step_schedule: Number of summed rewards over env_steps.
        gamma_schedule: Discount over env_steps.
        max_n_step: Largest value of the schedule.

    Raises:
        UsageError: A setting is out of its range.
    """

    obs_dim: int
    action_dim: int
    capacity: int
    batch_size: int
    batches_per_epoch: int
    n_step: int | Schedule
    gamma: float | Schedule
    num_envs: int
    reward_scale: float
    history: int
    priority_alpha: float
    n_step_schedule: Schedule = field(init=False)
    gamma_schedule: Schedule = field(init=False)
    max_n_step: int = field(init=False)

    def __post_init__(self) -> None:
        self.obs_dim = require_int("obs_dim", self.obs_dim, least=1)
        self.action_dim = require_int("action_dim", self.action_dim, least=1)
        self.num_envs = require_int("num_envs", self.num_envs, least=1, most=MAX_ENVS)
        self.batch_size = require_int("batch_size", self.batch_size, least=1, most=MAX_BATCH_SIZE)
        self.batches_per_epoch = require_int("batches_per_epoch", self.batches_per_epoch, least=1)
        self.history = require_int("history", self.history, least=0)
        self._check_n_step()
        least = self.num_envs * (self.max_n_step + 2 + self.history)
        self.capacity = require_int("capacity", self.capacity, least=least)
        fix = "Use 1 for unscaled rewards."
        self.reward_scale = require_float("reward_scale", self.reward_scale, above=0, most=MAX_REWARD_SCALE, fix=fix)
        self.gamma_schedule = as_schedule("gamma", self.gamma, least=0, most=1, fix="Use 0.99, for example.")
        fix = "Use 0.4 for the paper's priorities, or 0 for uniform sampling."
        self.priority_alpha = require_float("priority_alpha", self.priority_alpha, least=0, most=1, fix=fix)

    def _check_n_step(self) -> None:
        """Check that n_step is an integer or a schedule that begins with its largest value."""
        schedule = as_int_schedule("n_step", self.n_step)
        first = schedule(0)
        if isinstance(schedule, Linear) and schedule.end > first:
            raise UsageError(
                f"n_step must be a schedule that begins with its largest value, got {first:g} at first and "
                f"{schedule.end:g} at last. Use a number, or a schedule that decreases."
            )
        if round(first) == 1 and not isinstance(schedule, Constant | Linear):  # a replay of single steps never calls it
            raise refuse("n_step", "a number, or a schedule that begins above 1", schedule, "Use 1.")
        self.n_step_schedule, self.max_n_step = as_int_schedule("n_step", schedule, most=first), round(first)

    def check_env(self, env: Any) -> None:
        """Raise `UsageError` if an environment has no ring."""
        require_int("env", env, 0, self.num_envs - 1, "Use another index, or increase num_envs.")

    def scaled(self, reward: Any) -> float:
        """Multiply a reward by `reward_scale`; raise `UsageError` if it is not finite in float32."""
        number = float(reward) if isinstance(reward, bool | np.bool_) else as_float(reward)
        if number is None:
            raise refuse("reward", "a number", reward, "Use a number.")
        if not abs(number * self.reward_scale) <= MAX_FLOAT32:
            constraint = f"finite in float32 with reward_scale {self.reward_scale:g}"
            raise refuse("reward", constraint, reward, "Use a finite number, or reduce reward_scale.")
        return number * self.reward_scale

    @property
    def ring_length(self) -> int:
        """Number of rows of each environment."""
        return self.capacity // self.num_envs

    @property
    def row_width(self) -> int:
        """Number of float32 values in a row: observation, action, reward and end of the step."""
        return self.obs_dim + self.action_dim + 2

    @property
    def layout(self) -> dict[str, float]:
        """Return the settings that the stored rows depend on."""
        return {
            "obs_dim": self.obs_dim,
            "action_dim": self.action_dim,
            "capacity": self.capacity,
            "num_envs": self.num_envs,
            "n_step": self.max_n_step,
            "reward_scale": self.reward_scale,
        }

    def check_layout(self, saved: Mapping[str, float]) -> None:
        """Raise `UsageError` if the layout of saved rows is another one."""
        for name, value in self.layout.items():
            if saved[name] != value:
                raise UsageError(
                    f"{name} must be {saved[name]}, as in the saved replay buffer, got {value}. Use that value, or "
                    "start with an empty replay buffer (--data.empty_replay true)."
                )


def as_array(name: str, value: Any, width: int) -> NDArray[Any]:
    """Return numbers of shape (width,) as an array. An array of one number would fill a row without an error."""
    try:
        array = np.asarray(value)
    except Exception as error:  # a ragged list, a tensor on a GPU
        raise refuse(name, f"an array of shape ({width},)", value, "Use a NumPy array.") from error
    if array.shape != (width,) or array.dtype.kind not in "biuf":
        raise UsageError(
            f"{name} must be an array of numbers of shape ({width},), got shape {array.shape} of {array.dtype}. Use "
            "that shape, or create the replay buffer with other sizes."
        )
    return array


def as_float32(name: str, value: Any, width: int) -> Array:
    """Return finite numbers of shape (width,) in float32.

    A number that is not finite would also spread to the n-step sums of the previous episode.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        array = as_array(name, value, width).astype(np.float32, copy=False)
        is_finite = math.isfinite(array.dot(array)) or np.isfinite(array).all()  # the product is faster
    if not is_finite:
        wrong = np.asarray(value)[~np.isfinite(array)][0]
        raise refuse(name, "finite in float32", wrong, "Correct the environment, or omit the step.")
    return array


@lru_cache(maxsize=1)
def gamma_powers(gamma: float, n_step: int) -> NDArray[np.float32]:
    """Return 1, gamma, ..., gamma^n_step."""
    powers: NDArray[np.float32] = (gamma ** np.arange(n_step + 1)).astype(np.float32)
    return powers

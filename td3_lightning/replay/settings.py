"""Settings of a replay buffer."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from td3_lightning.errors import UsageError, refuse, require_float, require_int
from td3_lightning.schedules import Constant, Linear, Schedule, as_int_schedule, as_schedule

Array = NDArray[np.float32]
MAX_BATCH_SIZE = 1_000_000
MAX_ENVS = 10_000
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
        self.gamma_schedule = as_schedule(self.gamma, "gamma", least=0, most=1, fix="Use 0.99, for example.")
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

    def check_step(self, env: int, obs: Array, action: Array, next_obs: Array) -> None:
        """Check that a step fits a row: an array of one number, for example, would fill it without an error."""
        if not 0 <= env < self.num_envs:
            raise refuse("env", f"in [0, {self.num_envs})", env, "Use another index, or increase num_envs.")
        shapes = np.shape(obs), np.shape(action), np.shape(next_obs)
        expected = (self.obs_dim,), (self.action_dim,), (self.obs_dim,)
        if shapes != expected:
            raise UsageError(
                f"obs, action and next_obs must be arrays of shapes {expected}, got {shapes}. Use "
                "arrays of those shapes, or create the replay buffer with other sizes."
            )

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


@lru_cache(maxsize=1)
def gamma_powers(gamma: float, n_step: int) -> NDArray[np.float32]:
    """Return 1, gamma, ..., gamma^n_step."""
    powers: NDArray[np.float32] = (gamma ** np.arange(n_step + 1)).astype(np.float32)
    return powers

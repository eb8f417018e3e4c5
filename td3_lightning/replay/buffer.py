"""Replay buffer: one ring per environment, sampled as n-step transitions."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset

from td3_lightning.errors import UsageError, refuse, require_float, require_int
from td3_lightning.replay.batch import Batch
from td3_lightning.replay.priorities import Priorities
from td3_lightning.replay.ring import RUNNING, TERMINATED, TRUNCATED, Ring, TransitionIndex
from td3_lightning.schedules import Schedule, as_int_schedule, as_schedule
from td3_lightning.seeding import new_generator

Array = NDArray[np.float32]
MAX_BATCH_SIZE = 1_000_000
MAX_ENVS = 10_000
MAX_REWARD_SCALE = 1e10  # squares of larger rewards can exceed float32
ALLOCATED = ("rings", "rows", "priorities", "_offsets", "_n_step_windows")


class Replay(IterableDataset[Batch]):
    """Store transitions in one ring per environment, and yield batches sampled from all rings.

    Args:
        obs_dim: Size of an observation.
        action_dim: Size of an action.
        capacity: Number of rows in all rings together; new rows overwrite the oldest.
        batch_size: Transitions in a batch, sampled with replacement.
        batches_per_epoch: Batches of one iteration, which is the length of the dataset.
        n_step: Number of summed rewards: an integer, or a schedule over env_steps that begins with its largest value.
            A sum ends early at the end of an episode.
        gamma: Discount per environment step, in [0, 1], or a schedule over env_steps.
        num_envs: Number of environments.
        reward_scale: Factor for the stored rewards.
        history: Number of rows before a transition that are read with it.
        priority_alpha: Exponent of the priorities, in [0, 1]; 0 samples uniformly.

    Raises:
        UsageError: A setting is out of its range.
        MemoryError: The memory for the rows cannot be reserved.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        capacity: int = 1_000_000,
        batch_size: int = 256,
        batches_per_epoch: int = 5_000,
        n_step: int | Schedule = 1,
        gamma: float | Schedule = 0.99,
        num_envs: int = 1,
        reward_scale: float = 1.0,
        history: int = 0,
        priority_alpha: float = 0.0,
    ) -> None:
        self.obs_dim = require_int("obs_dim", obs_dim, least=1)
        self.action_dim = require_int("action_dim", action_dim, least=1)
        self.num_envs = require_int("num_envs", num_envs, 1, MAX_ENVS)
        self.batch_size = require_int("batch_size", batch_size, 1, MAX_BATCH_SIZE)
        self.batches_per_epoch = require_int("batches_per_epoch", batches_per_epoch, least=1)
        schedule = as_int_schedule("n_step", n_step)
        fix = "Use a number, or a schedule that begins with its largest value."
        self.n_step_schedule = as_int_schedule("n_step", schedule, most=schedule(0), fix=fix)
        self.n_step, self.history = round(self.n_step_schedule(0)), history
        self.capacity = require_int("capacity", capacity, least=self.num_envs * (self.n_step + 2 + history))
        self.gamma_schedule = as_schedule("gamma", gamma, least=0, most=1, fix="Use 0.99, for example.")
        fix = "Use 1 for unscaled rewards."
        self.reward_scale = require_float("reward_scale", reward_scale, above=0, most=MAX_REWARD_SCALE, fix=fix)
        fix = "Use 0.4 for the paper's priorities, or 0 for uniform sampling."
        self.priority_alpha = require_float("priority_alpha", priority_alpha, least=0, most=1, fix=fix)
        self.generator = new_generator("replay")
        self.steps_stored = 0
        self.steps_before = 0  # env_steps minus stored steps, for the schedules; below 0 with an earlier agent's rows
        self._allocate()

    def _allocate(self) -> None:
        """Make the rings in shared arrays, so that one operation gathers rows from all of them, and the priorities."""
        length, width, following = self.capacity // self.num_envs, self.obs_dim + self.action_dim + 2, self.n_step + 1
        rows: Array = np.zeros((self.num_envs, length + self.n_step, width), np.float32)  # takes memory when written
        offsets = np.zeros((self.num_envs, length), np.uint32)
        pairs = zip(rows, map(TransitionIndex, offsets), strict=True)
        self.rings = [Ring(own, index, self.obs_dim, self.n_step, self.history) for own, index in pairs]
        self.rows = torch.from_numpy(rows.reshape(-1, width))  # of all rings, one after the other
        self._offsets = offsets.reshape(-1)
        # Views of every row with the `n_step` rows after it, and index arrays for the n-step sums.
        self._n_step_windows = self.rows.as_strided((len(self.rows) - self.n_step, following * width), (width, 1))
        self._window_starts = np.arange(self.batch_size) * following  # first row of each window of a batch
        self._one_step = np.ones(self.batch_size, np.intp)
        self.priorities = Priorities(self.rings, self.priority_alpha) if self.priority_alpha else None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle holds. Copies of the arrays would not share their memory."""
        own = {name: value for name, value in vars(self).items() if name not in ALLOCATED}
        return {**own, "state": self.state_dict()}

    def __setstate__(self, held: dict[str, Any]) -> None:
        vars(self).update(held)
        self._allocate()
        self.load_state_dict(vars(self).pop("state"))

    @property
    def num_transitions(self) -> int:
        """Return the number of transitions that can be sampled."""
        return sum(ring.index.count for ring in self.rings)

    @property
    def rewards_summed(self) -> int:
        """Return the current n of the n-step returns."""
        return round(self.n_step_schedule(self.steps_before + self.steps_stored))

    @property
    def gamma(self) -> float:
        """Return the current discount."""
        return self.gamma_schedule(self.steps_before + self.steps_stored)

    @property
    def _powers(self) -> Array:
        """Return 1, gamma, ..., gamma^n_step."""
        return _powers(self.gamma, self.n_step)

    @property
    def transition_bytes(self) -> int:
        """Return the memory of one transition in bytes: its row, its entry in the index and its priority."""
        priority = 4 if self.priorities else 0
        return self.rows[0].nbytes + self._offsets.itemsize + priority

    def add(
        self, env: int, obs: Array, action: Array, reward: float, terminated: bool, truncated: bool, next_obs: Array
    ) -> None:
        """Store one step of environment `env`. All numbers must be finite.

        Args:
            env: Index of the environment, in [0, num_envs).
            obs: Observation (obs_dim,) before the action. In a running episode it is `next_obs` of the previous step.
            action: Action (action_dim,) in the environment's units.
            reward: Reward of the step.
            terminated: Whether the episode ended in a terminal state.
            truncated: Whether the episode was cut off, for example by a time limit.
            next_obs: Observation (obs_dim,) after the action. At the end of an episode it is the final observation,
                not the observation of the reset.

        Raises:
            UsageError: `obs` does not continue the episode.
        """
        obs, next_obs = np.asarray(obs, np.float32), np.asarray(next_obs, np.float32)
        if not self.rings[env].continues(obs):
            expected = f"next_obs of the previous step of environment {env}, whose episode is running"
            raise refuse("obs", expected, obs, "Use truncated=True in the last step of an episode.")
        self.steps_stored += 1
        end = TERMINATED if terminated else TRUNCATED if truncated else RUNNING
        self.rings[env].add(obs, action, reward * self.reward_scale, end, next_obs)

    def sample(self) -> Batch:
        """Sample a batch with replacement, uniformly or in proportion to the priorities."""
        windows, reward, discount, steps = self._transitions(self._draw())
        obs, action = windows[:, 0, : self.obs_dim], windows[:, 0, self.obs_dim : -2]
        if self.n_step == 1:
            following = windows[:, 1]
        else:
            following = windows.reshape(-1, windows.shape[-1]).take(self._window_starts + steps, axis=0)
        next_obs = following[:, : self.obs_dim]
        return Batch(*map(torch.from_numpy, (obs, action, reward, discount, next_obs)))

    def _transitions(self, starts: Tensor) -> tuple[Array, Array, Array, NDArray[np.intp]]:
        """Return the windows (batch, n_step + 1, row), rewards, discounts and numbers of steps (batch,)."""
        # NumPy is faster than torch for small arrays.
        windows = self._n_step_windows.index_select(0, starts).numpy().reshape(self.batch_size, self.n_step + 1, -1)
        if self.n_step == 1:  # faster than the general case below
            first = windows[:, 0]
            return windows, first[:, -2], self._powers[1] * (first[:, -1] != TERMINATED), self._one_step
        reward, steps = self._sum_rewards(windows[..., -2], windows[..., -1])
        end = windows[..., -1].reshape(-1).take(self._window_starts + (steps - 1))
        return windows, reward, self._powers[steps] * (end != TERMINATED), steps

    def _sum_rewards(self, rewards: Array, ends: Array) -> tuple[Array, NDArray[np.intp]]:
        """Return discounted sums (batch,) of rewards (batch, n_step + 1) up to an episode's end, and their lengths."""
        n = self.rewards_summed
        continues = np.logical_and.accumulate(ends[:, : n - 1] == RUNNING, axis=1)
        later = np.einsum("bn,bn,n->b", rewards[:, 1:n], continues, self._powers[1:n])
        return rewards[:, 0] + later, 1 + np.count_nonzero(continues, axis=1)

    def _draw(self) -> Tensor:
        """Sample the first rows (batch,) of transitions from all rings."""
        num_transitions = self.num_transitions
        if not num_transitions:
            raise UsageError(
                "Cannot sample: the replay buffer holds no complete transition. Increase the Collector's warmup_steps "
                f"to n_step x num_envs = {self.n_step * len(self.rings)}, or add it to the Trainer's callbacks."
            )
        if self.priorities is not None:
            return self.priorities.draw(self.batch_size, self.generator)
        ring = self.rings[0]
        if len(self.rings) == 1:  # faster than the general case below
            rows = ring.index.rows(self._random_choice(ring.index.places))
            return torch.from_numpy(rows % ring.length if ring.written > ring.length else rows)
        drawn = self._random_choice(range(num_transitions))
        counts = np.array([each.index.count for each in self.rings])
        ends = counts.cumsum()
        env = np.searchsorted(ends, drawn, side="right")
        oldest = np.array([each.index.oldest for each in self.rings]) - (ends - counts)
        numbers, memory = drawn + oldest[env], len(ring.index.offsets)
        places = env * memory + numbers % memory
        rows = numbers + self._offsets.take(places)
        return torch.from_numpy(rows % ring.length + env * len(ring.rows))

    def _random_choice(self, numbers: range) -> NDArray[np.int64]:
        """Sample numbers (batch,) from a range uniformly with replacement."""
        drawn = torch.randint(numbers.start, numbers.stop, (self.batch_size,), generator=self.generator)
        return drawn.numpy()

    def __len__(self) -> int:
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        return (self.sample() for _ in range(self.batches_per_epoch))

    @property
    def layout(self) -> dict[str, float]:
        """Return the settings that the stored rows depend on."""
        names = ("obs_dim", "action_dim", "capacity", "num_envs", "n_step", "reward_scale")
        return {name: getattr(self, name) for name in names}

    def position(self) -> dict[str, Any]:
        """Return the state without the rings, as tensors and plain numbers."""
        return {
            "layout": self.layout,
            "steps_stored": self.steps_stored,
            "steps_before": self.steps_before,
            "generator": self.generator.get_state(),
            **({} if self.priorities is None else {"priorities": self.priorities.state_dict()}),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain numbers."""
        return {**self.position(), "rings": [ring.state_dict() for ring in self.rings]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`; raise `UsageError` if it has another layout."""
        for name, value in self.layout.items():
            if (saved := state["layout"][name]) != value:
                raise UsageError(
                    f"{name} must be {saved}, as in the saved replay buffer, got {value}. Use that value, or start "
                    "with an empty replay buffer (--data.empty_replay true)."
                )
        for ring, held in zip(self.rings, state["rings"], strict=True):
            ring.load_state_dict(held)
        self.steps_stored = state["steps_stored"]
        self.steps_before = state["steps_before"]
        self.generator.set_state(state["generator"])
        if self.priorities is not None:
            self.priorities.load_state_dict(state.get("priorities", {}))  # uniform sampling saves none


@lru_cache(maxsize=1)
def _powers(gamma: float, n_step: int) -> Array:
    powers: Array = (gamma ** np.arange(n_step + 1)).astype(np.float32)
    return powers

"""Replay buffer: one ring per environment, sampled as n-step transitions."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset

from td3_lightning.errors import UsageError, refuse
from td3_lightning.replay.batch import Batch
from td3_lightning.replay.memory import lazy_zeros
from td3_lightning.replay.priorities import Priorities, require
from td3_lightning.replay.ring import RUNNING, SHIFT, TERMINATED, TRUNCATED, Ring, TransitionIndex
from td3_lightning.replay.settings import Array, ReplaySettings, as_float32, gamma_powers
from td3_lightning.schedules import Schedule
from td3_lightning.seeding import new_generator

ALLOCATED = ("rings", "rows", "priorities", "_offsets", "_block_offsets", "_n_step_windows")


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
        UsageError: A setting is out of its range, or the memory for the rows cannot be reserved.
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
        super().__init__()
        self.settings = settings = ReplaySettings(
            obs_dim, action_dim, capacity, batch_size, batches_per_epoch, n_step, gamma, num_envs, reward_scale,
            history, priority_alpha,
        )  # fmt: skip
        self.obs_dim, self.action_dim, self.capacity = settings.obs_dim, settings.action_dim, settings.capacity
        self.batch_size, self.batches_per_epoch = settings.batch_size, settings.batches_per_epoch
        self.n_step_schedule, self.n_step = settings.n_step_schedule, settings.max_n_step
        self.gamma_schedule, self.reward_scale = settings.gamma_schedule, settings.reward_scale
        self.generator = new_generator("replay")
        self.steps_stored = 0
        self.steps_before = 0  # env_steps minus stored steps, for the schedules; below 0 with an earlier agent's rows
        self._allocate()

    def _allocate(self) -> None:
        """Make the rings, their windows and the priorities, without transitions."""
        self._allocate_rings(self.settings)
        self._make_windows(self.settings)
        self.priorities = Priorities(self.rings, alpha) if (alpha := self.settings.priority_alpha) else None  # uniform

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle holds. Copies of the arrays would not share their memory."""
        own = {name: value for name, value in vars(self).items() if name not in ALLOCATED}
        return {**own, "state": self.state_dict()}

    def __setstate__(self, held: dict[str, Any]) -> None:
        vars(self).update(held)
        self._allocate()
        self.load_state_dict(vars(self).pop("state"))

    def _allocate_rings(self, settings: ReplaySettings) -> None:
        """Make the rings in shared arrays, so that one operation gathers rows from all of them."""
        envs, length = settings.num_envs, settings.ring_length
        rows = lazy_zeros((envs, length + self.n_step, settings.row_width), np.dtype(np.float32))
        offsets = lazy_zeros((envs, TransitionIndex.memory_for(length)), np.dtype(np.uint16))
        block_offsets = np.zeros((envs, offsets.shape[1] >> SHIFT), np.int64)
        self.rings = [
            Ring(own, TransitionIndex(*memory), self.obs_dim, self.n_step, settings.history)
            for own, *memory in zip(rows, offsets, block_offsets, strict=True)
        ]
        self.rows = torch.from_numpy(rows.reshape(-1, settings.row_width))  # of all rings, one after the other
        self._offsets, self._block_offsets = offsets.reshape(-1), block_offsets.reshape(-1)

    def _make_windows(self, settings: ReplaySettings) -> None:
        """Make views of every row with the `n_step` rows after it, and index arrays for the n-step sums."""
        following, width = self.n_step + 1, settings.row_width
        self._n_step_windows = self.rows.as_strided((len(self.rows) - self.n_step, following * width), (width, 1))
        self._window_starts = np.arange(self.batch_size) * following  # first row of each window of a batch
        self._one_step = np.ones(self.batch_size, np.intp)

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
        """Return the discounts (n_step + 1,) of the rewards in a window."""
        return gamma_powers(self.gamma, self.n_step)

    @property
    def transition_bytes(self) -> int:
        """Return the memory of one transition in bytes: its row, its entry in the index and its priority."""
        priority = 0 if self.priorities is None else self.priorities.itemsize
        return self.rows[0].nbytes + self._offsets.itemsize + priority

    def add(
        self, env: int, obs: Array, action: Array, reward: float, terminated: bool, truncated: bool, next_obs: Array
    ) -> None:
        """Store one step of environment `env`.

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
            UsageError: The index or a shape is wrong, a number is not finite, or `obs` does not continue the episode.
        """
        self.settings.check_env(env)
        obs, next_obs = as_float32("obs", obs, self.obs_dim), as_float32("next_obs", next_obs, self.obs_dim)
        self._store(env, obs, action, reward, terminated, truncated, next_obs)

    def _store(
        self, env: int, obs: Array, action: Array, reward: float, terminated: bool, truncated: bool, next_obs: Array
    ) -> None:
        """Store a step whose environment and observations are checked."""
        action, reward = as_float32("action", action, self.action_dim), self.settings.scaled(reward)
        end = TERMINATED if terminated else TRUNCATED if truncated else RUNNING
        if not self.rings[env].continues(obs):
            expected = f"next_obs of the previous step of environment {env}, whose episode is running"
            raise refuse("obs", expected, obs, "Use truncated=True in the last step of an episode.")
        self.steps_stored += 1
        self.rings[env].add(obs, action, reward, end, next_obs)

    def sample(self) -> Batch:
        """Sample a batch with replacement, uniformly or in proportion to the priorities."""
        windows, reward, discount, steps = self._transitions(self._draw())
        obs, action = windows[:, 0, : self.obs_dim], windows[:, 0, self.obs_dim : -2]
        next_obs = self._after(windows, steps)[:, : self.obs_dim]
        return Batch(*map(torch.from_numpy, (obs, action, reward, discount, next_obs)))

    def _transitions(self, starts: Tensor) -> tuple[Array, Array, Array, NDArray[np.intp]]:
        """Return the windows (batch, n_step + 1, row), rewards, discounts and numbers of steps (batch,)."""
        # NumPy is faster than torch for small arrays.
        windows = self._n_step_windows.index_select(0, starts).numpy().reshape(self.batch_size, self.n_step + 1, -1)
        return windows, *self._outcomes(windows)

    def _outcomes(self, windows: Array) -> tuple[Array, Array, NDArray[np.intp]]:
        """Return rewards, discounts and numbers of steps (batch,) of windows (batch, n_step + 1, 2 or more).

        The last two values of each row are the reward and how the step ended.
        """
        if self.n_step == 1:  # faster than the general case below
            first = windows[:, 0]
            return first[:, -2], self._powers[1] * (first[:, -1] != TERMINATED), self._one_step
        reward, steps = self._sum_rewards(windows[..., -2], windows[..., -1])
        end = windows[..., -1].reshape(-1).take(self._window_starts + (steps - 1))
        return reward, self._powers[steps] * (end != TERMINATED), steps

    def _after(self, windows: Array, steps: NDArray[np.intp]) -> Array:
        """Return the row (batch, row) that is `steps` after the first one of each window."""
        if self.n_step == 1:
            return windows[:, 1]
        return windows.reshape(-1, windows.shape[-1]).take(self._window_starts + steps, axis=0)

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
        rows = numbers + self._block_offsets.take(places >> SHIFT) + self._offsets.take(places)
        return torch.from_numpy(rows % ring.length + env * len(ring.rows))

    def _random_choice(self, numbers: range) -> NDArray[np.int64]:
        """Sample numbers (batch,) from a range uniformly with replacement."""
        drawn = torch.randint(numbers.start, numbers.stop, (self.batch_size,), generator=self.generator)
        return drawn.numpy()

    def update_priorities(self, td_error: Tensor) -> None:
        """Set the priorities of the last sampled batch to max(absolute TD error, 1)^priority_alpha.

        Args:
            td_error: Absolute TD errors (batch,), the largest over the critics.

        Raises:
            UsageError: No batch was sampled since the last call, or the replay buffer samples uniformly.
        """
        require(self.priorities).update(td_error.detach().float().cpu().numpy())

    def reset_max_priority(self) -> None:
        """Set the priority of new transitions to the largest one in the replay buffer.

        Otherwise, it is the largest one since the last call, whose transition may have a smaller priority now.
        """
        require(self.priorities).reset_max_priority()

    def __len__(self) -> int:
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.batches_per_epoch):
            yield self.sample()

    def position(self) -> dict[str, Any]:
        """Return the state without the rings, as tensors and plain numbers."""
        return {
            "layout": self.settings.layout,
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
        self.settings.check_layout(state["layout"])
        for ring, saved in zip(self.rings, state["rings"], strict=True):
            ring.load_state_dict(saved)
        self.steps_stored = state["steps_stored"]
        self.steps_before = state.get("steps_before", 0)  # older checkpoints do not have it
        self.generator.set_state(state["generator"])
        if self.priorities is not None:
            self.priorities.load_state_dict(state.get("priorities", {}))  # uniform sampling saves none

"""Replay buffer: one ring per environment, sampled as n-step transitions."""

import contextlib
import math
import mmap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset

from td3_lightning.errors import UsageError, require_float, require_int
from td3_lightning.replay.ring import RUNNING, SHIFT, TERMINATED, TRUNCATED, Ring, TransitionIndex
from td3_lightning.schedules import Schedule, as_schedule
from td3_lightning.seeding import new_generator

MAX_ENV_STEPS = 2**53  # environment steps that no run takes


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host's on another device, for which nobody waits."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


class Batch(NamedTuple):
    """Transitions as the learner sees them, float32; frames of `data.pixels` are bytes.

    `reward` is the n-step sum and `discount` what the value of `next_obs` counts: gamma to the
    number of steps summed, and 0 where the episode terminated. A time limit bootstraps.
    """

    obs: Tensor  # (batch, obs_dim)
    action: Tensor  # (batch, action_dim)
    reward: Tensor  # (batch,)
    discount: Tensor  # (batch,)
    next_obs: Tensor  # (batch, obs_dim)

    def to(self, device: torch.device) -> "Batch":
        """The same on another device; numbers of one kind go there in one piece, which nothing waits for."""
        if len({column.dtype for column in self}) > 1:
            return Batch(*(sent(column, device) for column in self))
        columns = [column.reshape(len(column), -1) for column in self]
        whole = sent(torch.cat(columns, dim=1), device)
        parts = torch.split(whole, [column.shape[1] for column in columns], dim=1)
        return Batch(*(part.reshape(column.shape) for part, column in zip(parts, self, strict=True)))


class SampledIndices(NamedTuple):
    """Transitions that were drawn, in as few numbers as tell them; their rows may be read elsewhere."""

    places: Tensor  # (2 or more, batch), int64: rows of obs and of next_obs, and what else is needed to read them
    outcomes: Tensor  # (2, batch), float32: reward and discount


class Replay(IterableDataset[Batch]):
    """Stores transitions in a ring per environment and yields uniform batches of them.

    Args:
        obs_dim: Numbers in an observation.
        action_dim: Numbers in an action.
        capacity: Rows kept, over all environments; the oldest go first.
        batch_size: Transitions in a batch, drawn uniformly with replacement.
        batches_per_epoch: Batches that one iteration yields, which is the dataset's length.
        n_step: Rewards summed before the value is asked, a number or a schedule over env_steps, whose value at 0 is
            its largest; a sum ends early where its episode does.
        gamma: Discount per environment step, in [0, 1].
        num_envs: Environments that write.
        reward_scale: Rewards are stored times this.
        history: Rows before a transition's first that are read with it.

    Raises:
        UsageError: A setting is out of its range, or the rows take more memory than there is.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        capacity: int = 1_000_000,
        batch_size: int = 256,
        batches_per_epoch: int = 5_000,
        n_step: int | Schedule = 1,
        gamma: float = 0.99,
        num_envs: int = 1,
        reward_scale: float = 1.0,
        history: int = 0,
    ) -> None:
        super().__init__()
        self.obs_dim = obs_dim = require_int("obs_dim", obs_dim, least=1)
        self.action_dim = action_dim = require_int("action_dim", action_dim, least=1)
        num_envs = require_int("num_envs", num_envs, least=1)
        self.batch_size = batch_size = require_int("batch_size", batch_size, least=1)
        self.batches_per_epoch = require_int("batches_per_epoch", batches_per_epoch, least=1)
        history = require_int("history", history, least=0)
        number = not isinstance(n_step, Schedule | Mapping)
        self.n_step_schedule = as_schedule(require_int("n_step", n_step, least=1) if number else n_step, "n_step")
        # Every window has room for the largest.
        self.n_step = require_int("n_step", round(require_float("n_step", self.n_step_schedule(0))), least=1)
        if (later := self.n_step_schedule(MAX_ENV_STEPS)) > self.n_step:
            raise UsageError(
                f"n_step must be a schedule that begins with its largest value, got {self.n_step} at first and "
                f"{later:g} at last. Use a number, or a schedule that decreases."
            )
        self.capacity = require_int("capacity", capacity, least=num_envs * (self.n_step + 2 + history))
        fix = "Use 1 for unscaled rewards."
        self.reward_scale = require_float("reward_scale", reward_scale, above=0, fix=fix)
        self.gamma = gamma = require_float("gamma", gamma, least=0, most=1, fix="Use 0.99, for example.")
        self.generator = new_generator("replay")
        self.steps_stored = 0
        self.steps_before = 0  # taken before the first one here, as far as the schedule is concerned
        length, width = self.capacity // num_envs, obs_dim + action_dim + 2
        rows = _untouched_zeros((num_envs, length + self.n_step, width), np.dtype(np.float32))
        passed = _untouched_zeros((num_envs, TransitionIndex.memory_for(length)), np.dtype(np.uint16))
        before = np.zeros((num_envs, passed.shape[1] >> SHIFT), np.int64)
        self.rings = [
            Ring(own, TransitionIndex(*memory), obs_dim, self.n_step, history)
            for own, *memory in zip(rows, passed, before, strict=True)
        ]
        self.rows = torch.from_numpy(rows.reshape(-1, width))  # the rings', one below the other
        self._passed, self._before = passed.reshape(-1), before.reshape(-1)  # of all starts, one behind the other
        following = self.n_step + 1
        self._windows = self.rows.as_strided((len(self.rows) - self.n_step, following * width), (width, 1))
        self._tails = self.rows.as_strided((len(self._windows), following, 2), (width, width, 1), width - 2)
        self._window_starts = np.arange(batch_size) * following  # in a batch of windows, one below the other
        self._one_step = np.ones(batch_size, np.intp)
        self._powers = (gamma ** np.arange(following)).astype(np.float32)

    @property
    def num_transitions(self) -> int:
        """Transitions that a batch is drawn from."""
        return sum(ring.starts.count for ring in self.rings)

    @property
    def rewards_summed(self) -> int:
        """The n of the n-step returns that are read now."""
        return min(max(round(self.n_step_schedule(self.steps_before + self.steps_stored)), 1), self.n_step)

    @property
    def transition_bytes(self) -> int:
        """Bytes that a transition takes: its row and where that is."""
        return self.rows[0].nbytes + self._passed.itemsize

    def add(
        self,
        env: int,
        obs: NDArray[np.float32],
        action: NDArray[np.float32],
        reward: float,
        terminated: bool,
        truncated: bool,
        next_obs: NDArray[np.float32],
    ) -> None:
        """Stores one step of environment `env`.

        Args:
            env: Which environment, in [0, num_envs).
            obs: Observation (obs_dim,) that the action answered.
            action: Action (action_dim,) in the environment's units.
            reward: Its reward.
            terminated: The episode ended in a state without a future.
            truncated: The episode was cut off, by a time limit say.
            next_obs: Observation (obs_dim,) after the action; after an end the last one, not the reset's.
        """
        end = TERMINATED if terminated else TRUNCATED if truncated else RUNNING
        self.steps_stored += 1
        self.rings[env].add(obs, action, reward * self.reward_scale, end, next_obs)

    def sample(self) -> Batch:
        """Draws a batch; every transition has the same chance each time."""
        windows, reward, discount, steps = self._transitions(self._draw())
        obs, action = windows[:, 0, : self.obs_dim], windows[:, 0, self.obs_dim : -2]
        next_obs = self._after(windows, steps)[:, : self.obs_dim]
        return Batch(*map(torch.from_numpy, (obs, action, reward, discount, next_obs)))

    def sample_indices(self) -> SampledIndices:
        """Draws a batch as `sample` does, and leaves its rows to `read`."""
        starts = self._draw()
        reward, discount, steps = self._outcomes(self._tails.index_select(0, starts).numpy())
        outcomes = torch.from_numpy(np.stack([reward, discount]))
        return SampledIndices(torch.stack([starts.long(), starts + torch.from_numpy(steps)]), outcomes)

    def read(self, rows: Tensor, choice: SampledIndices) -> Batch:
        """The batch that `sample` would have given, from a copy of all rows that may be on another device."""
        first, later = (rows.index_select(0, places) for places in choice.places)
        reward, discount = choice.outcomes
        return Batch(first[:, : self.obs_dim], first[:, self.obs_dim : -2], reward, discount, later[:, : self.obs_dim])

    def _transitions(
        self, starts: Tensor
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], NDArray[np.intp]]:
        """Rows (batch, n_step + 1, row), sums of rewards, discounts and numbers of steps (batch,) of transitions."""
        # Each with the rows that follow it. numpy from here on, whose small operations take a third of torch's time.
        windows = self._windows.index_select(0, starts).numpy().reshape(self.batch_size, self.n_step + 1, -1)
        return windows, *self._outcomes(windows)

    def _outcomes(
        self, windows: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.intp]]:
        """The last three of these, for windows (batch, n_step + 1, 2 or more) that end with the reward and the end."""
        if self.n_step == 1:  # the same as below, without the sums
            first = windows[:, 0]
            return first[:, -2], self._powers[1] * (first[:, -1] != TERMINATED), self._one_step
        reward, steps = self._sum_rewards(windows[..., -2], windows[..., -1])
        end = windows[..., -1].reshape(-1).take(self._window_starts + (steps - 1))
        return reward, self._powers[steps] * (end != TERMINATED), steps

    def _after(self, windows: NDArray[np.float32], steps: NDArray[np.intp]) -> NDArray[np.float32]:
        """The rows (batch, row) in windows (batch, n_step + 1, row) that come a number of steps (batch,) later."""
        if self.n_step == 1:
            return windows[:, 1]
        return windows.reshape(-1, windows.shape[-1]).take(self._window_starts + steps, axis=0)

    def _sum_rewards(
        self, rewards: NDArray[np.float32], ends: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """The discounted sums (batch,) of rewards (batch, n_step + 1) and how many each has; an end is the last one."""
        n = self.rewards_summed
        goes_on = np.logical_and.accumulate(ends[:, : n - 1] == RUNNING, axis=1)
        later = np.einsum("bn,bn,n->b", rewards[:, 1:n], goes_on, self._powers[1:n])
        return rewards[:, 0] + later, 1 + np.count_nonzero(goes_on, axis=1)

    def _draw(self) -> Tensor:
        """The first rows (batch,) of transitions drawn from all rings alike."""
        num_transitions = self.num_transitions
        if not num_transitions:
            raise UsageError(
                "A batch is wanted, but the replay holds no finished transition; raise the Collector's warmup_steps "
                f"to n_step x num_envs = {self.n_step * len(self.rings)}, or add it to the trainer's callbacks."
            )
        ring = self.rings[0]
        if len(self.rings) == 1:  # the same as below, without the search
            rows = ring.starts.rows(self._drawn_of(ring.starts.places))
            return torch.from_numpy(rows % ring.length if ring.written > ring.length else rows)
        drawn = self._drawn_of(range(num_transitions))
        counts = np.array([each.starts.count for each in self.rings])
        ends = counts.cumsum()
        env = np.searchsorted(ends, drawn, side="right")
        oldest = np.array([each.starts.oldest for each in self.rings]) - (ends - counts)
        numbers, memory = drawn + oldest[env], len(ring.starts.passed)
        places = env * memory + numbers % memory
        rows = numbers + self._before.take(places >> SHIFT) + self._passed.take(places)
        return torch.from_numpy(rows % ring.length + env * len(ring.rows))

    def _drawn_of(self, numbers: range) -> NDArray[np.int64]:
        """Some of the numbers (batch,), each with the same chance every time."""
        drawn = torch.randint(numbers.start, numbers.stop, (self.batch_size,), generator=self.generator)
        return drawn.numpy()

    def __len__(self) -> int:
        return self.batches_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.batches_per_epoch):
            yield self.sample()

    @property
    def _layout(self) -> dict[str, float]:
        """What the stored rows depend on."""
        return {
            "obs_dim": self.obs_dim,
            "action_dim": self.action_dim,
            "capacity": self.capacity,
            "num_envs": len(self.rings),
            "n_step": self.n_step,
            "reward_scale": self.reward_scale,
        }

    def position(self) -> dict[str, Any]:
        """All that changes but the rings, as tensors and plain numbers."""
        return {
            "layout": self._layout,
            "steps_stored": self.steps_stored,
            "steps_before": self.steps_before,
            "generator": self.generator.get_state(),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that changes, as tensors and plain numbers."""
        return {**self.position(), "rings": [ring.state_dict() for ring in self.rings]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what `state_dict` gave; raises `UsageError` if it was of another layout."""
        for name, wanted in self._layout.items():
            if state["layout"][name] != wanted:
                raise UsageError(
                    f"The saved replay has {name}={state['layout'][name]}, but {wanted} came; resume with the value "
                    "that the run began with, or begin with an empty replay (--data.empty_replay true)."
                )
        for ring, saved in zip(self.rings, state["rings"], strict=True):
            ring.load_state_dict(saved)
        self.steps_stored = state["steps_stored"]
        self.steps_before = state.get("steps_before", 0)  # of which older checkpoints know nothing
        self.generator.set_state(state["generator"])


def _untouched_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros that take no memory before they are written; malloc may hand out pages that are in use already."""
    size = math.prod(shape) * dtype.itemsize
    try:
        pages = _pages(size)
    except OSError as error:
        raise UsageError(
            f"The replay's rows take {size / 1e9:.1f} GB, which this machine does not give ({error}); lower capacity."
        ) from error
    return np.frombuffer(pages, dtype).reshape(shape)


def _pages(size: int) -> mmap.mmap:
    """Memory of so many bytes; on Linux in pages of 2 MB, where reading rows at random takes a quarter less."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages

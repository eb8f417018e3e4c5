"""Replay buffer with Hindsight Experience Replay (HER, Andrychowicz et al., 2017)."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.errors import UsageError, require_choice, require_float
from td3_lightning.replay.buffer import Array, Replay
from td3_lightning.replay.ring import RUNNING
from td3_lightning.seeding import derive_seed

TOLERANCE = 1e-4  # of a stored float32 reward
MOST_OTHER_REWARDS = 0.05  # share of a batch, above which the environment's reward is not a function of the goals


@dataclass(frozen=True)
class Hindsight:
    """Replace the desired goals of sampled transitions by goals that their episodes achieved later.

    Args:
        share: Share of each batch whose goals are replaced, in [0, 1], rounded to whole transitions.
        strategy: The achieved goal to use: "future" (of a random later step) or "final" (of the last stored step).

    Raises:
        UsageError: A setting is out of its range.
    """

    share: float = 0.8
    strategy: Literal["future", "final"] = "future"

    def __post_init__(self) -> None:
        require_float("data.her.share", self.share, least=0, most=1, fix="Use 0.8, for example.")
        require_choice("data.her.strategy", self.strategy, ("future", "final"))


class HindsightReplay(Replay):
    """Relabel a share of each batch. The stored rows keep their goals.

    A relabeled transition has a goal that its episode achieved after it, in both observations, and the reward and the
    termination of that goal. A running episode has the goals that it has achieved so far.

    Args:
        goals: Goals of the environment, see `td3_lightning.envs.goals.Goals`.
        her: Settings.
        obs_dim: Size of an observation.
        **settings: Other arguments of `Replay`.

    Raises:
        UsageError: The settings include n-step returns or priorities.
    """

    def __init__(self, goals: Any, her: Hindsight, obs_dim: int, **settings: Any) -> None:
        self.goals, self.her, self.her_rng = goals, her, np.random.default_rng(derive_seed("hindsight"))
        self._is_checked = False
        super().__init__(obs_dim, **settings)
        for name, value, only in (("n_step", self.n_step, 1), ("priority_alpha", self.priority_alpha, 0)):
            if value != only:
                raise UsageError(f"data.{name} must be {only} with data.her, got {value}. Remove one of them.")
        self.relabeled = round(her.share * self.batch_size)  # transitions of a batch

    def _allocate(self) -> None:
        super()._allocate()
        # Steps from each row to its episode's last observation; 0 in a running episode.
        self._remaining = np.zeros(len(self.rows), np.int32)
        self._forget_episodes()

    def _forget_episodes(self) -> None:
        self._read = [0] * len(self.rings)  # rows of each ring that were searched for ends
        self._begins = [0] * len(self.rings)  # first row of each ring after its last known episode

    def _find_ends(self, env: int) -> None:
        """Find the episodes of an environment that have ended since the last call."""
        ring = self.rings[env]
        oldest, final = ring.valid_rows.start, ring.immutable_rows
        first, self._read[env] = max(self._read[env], oldest), final
        if first >= ring.written:
            return
        self._set_remaining(env, np.arange(first, ring.written), 0)
        ends = first + np.flatnonzero(np.concatenate(ring.parts(range(first, final)))[:, -1] != RUNNING)
        if len(ends):
            rows = np.arange(max(self._begins[env], oldest), ends[-1] + 1)
            self._set_remaining(env, rows, ends[np.searchsorted(ends, rows)] + 1 - rows)
            self._begins[env] = int(ends[-1]) + 2

    def _set_remaining(self, env: int, rows: NDArray[np.int64], steps: NDArray[np.int64] | int) -> None:
        ring = self.rings[env]
        self._remaining[env * len(ring.rows) + rows % ring.length] = steps

    def later_rows(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw the row of a later observation of the same episode for each of the rows (n,), as the strategy says."""
        for env in range(len(self.rings)):
            self._find_ends(env)
        length, stride = self.rings[0].length, len(self.rings[0].rows)
        slots = starts if len(self.rings) == 1 else starts % stride
        steps: NDArray[Any] = self._remaining.take(starts)
        if np.count_nonzero(steps) < len(steps):
            written = np.array([ring.written for ring in self.rings])[starts // stride]
            steps = np.where(steps, steps, (written - slots - 1) % length + 1)  # to the newest row
        if self.her.strategy == "future":
            steps = 1 + (self.her_rng.random(len(starts)) * steps).astype(np.int64)
        later: NDArray[np.int64] = (slots + steps) % length
        return later if len(self.rings) == 1 else later + (starts - slots)

    def _transitions(self, starts: Tensor) -> tuple[Array, Array, Array, NDArray[np.intp]]:
        windows, reward, discount, steps = super()._transitions(starts)
        if n := self.relabeled:
            if not self._is_checked:
                self._check_rewards(windows)
            later = self.later_rows(starts.numpy()[:n])
            rows = self.rows.numpy().take(later, axis=0)  # faster than taking a part of rows
            goals = np.asfortranarray(rows[:, self.goals.achieved])  # halves the time of a reward such as FetchReach's
            self._relabel(windows[:n], goals, reward[:n], discount[:n])
        return windows, reward, discount, steps

    def _relabel(self, windows: Array, goals: Array, reward: Array, discount: Array) -> None:
        """Replace the goals of windows (n, 2, row), and their rewards and discounts (n,), in place.

        What a reward contains besides that of its goal is kept, such as a cost of the action or a penalty for a fall.
        """
        achieved, desired = np.asfortranarray(windows[:, 1, self.goals.achieved]), windows[:, :, self.goals.desired]
        change = self.goals.reward(achieved, goals) - self.goals.reward(achieved, np.asfortranarray(desired[:, 1]))
        reward += self.reward_scale * change
        if self.goals.terminated is not None:
            terminated = self.goals.terminated(achieved, goals)
            if not discount.all():  # an episode may also end for another reason than its goal, such as a fall
                by_goal = self.goals.terminated(achieved, desired[:, 1])
                terminated = np.logical_or(terminated, (discount == 0) & np.logical_not(by_goal))
            discount[:] = np.where(terminated, 0, self.gamma)
        desired[:] = goals[:, None]

    def _check_rewards(self, windows: Array) -> None:
        """Warn if the stored rewards are not those of the stored goals, as after a wrapper that changes rewards."""
        self._is_checked = True
        achieved, desired = windows[:, 1, self.goals.achieved], windows[:, 1, self.goals.desired]
        stored, expected = windows[:, 0, -2], self.reward_scale * self.goals.reward(achieved, desired)
        other = ~np.isclose(stored, expected, TOLERANCE, TOLERANCE)
        if other.mean() > MOST_OTHER_REWARDS:
            rank_zero_warn(
                f"{other.mean():.0%} of the rewards of {self.goals.name} are not those of its compute_reward, for "
                f"example {stored[other][0]:g} instead of {expected[other][0]:g}. data.her keeps the difference, which "
                "is right for costs and penalties, but not for a wrapper that scales or clips rewards."
            )

    def position(self) -> dict[str, Any]:
        """Return the state without the rings. The draws of goals have their own generator."""
        return {**super().position(), "her_rng": self.her_rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`, also of a replay buffer without hindsight."""
        super().load_state_dict(state)
        self._forget_episodes()
        if "her_rng" in state:
            self.her_rng.bit_generator.state = state["her_rng"]

"""Recorded episodes, and how they enter a replay buffer."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from td3_lightning.errors import UsageError
from td3_lightning.replay.buffer import Replay
from td3_lightning.replay.ring import TERMINATED, TRUNCATED


@dataclass(frozen=True)
class RecordedEpisode:
    """Hold the transitions of one episode, of which only the last one may terminate or truncate.

    Args:
        obs: Observations (steps + 1, obs_dim). The last one is the final observation.
        action: Actions (steps, action_dim) in the environment's units.
        reward: Rewards (steps,).
        terminated: Whether the last transition ended in a terminal state.
        truncated: Whether the last transition was cut off, for example by a time limit.
        seed: Seed of the reset, if known.
    """

    obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[Any]
    terminated: bool
    truncated: bool
    seed: int | None = None

    def rows(self, reward_scale: float) -> NDArray[np.float32]:
        """Return the rows (steps + 1, row) of a `Ring`."""
        obs_dim = self.obs.shape[1]
        rows = np.zeros((len(self.obs), obs_dim + self.action.shape[1] + 2), np.float32)
        rows[:, :obs_dim] = self.obs
        rows[:-1, obs_dim:-2] = self.action
        rows[:-1, -2] = self.reward * reward_scale
        rows[-2, -1] = TERMINATED if self.terminated else TRUNCATED
        return rows


def describe(episodes: Sequence[RecordedEpisode]) -> str:
    """Describe recorded episodes in one line: their number, their steps and the mean of their returns."""
    returns = np.array([episode.reward.sum(dtype=np.float64) for episode in episodes])
    steps = sum(len(episode.reward) for episode in episodes)
    return f"{len(episodes):,} episodes, {steps:,} steps, return {returns.mean():,.2f} ± {returns.std():,.2f}"


def fill(replay: Replay, episodes: Sequence[RecordedEpisode]) -> None:
    """Replace the rows of a replay buffer by recorded episodes, which do not count as environment steps.

    Raises:
        UsageError: The capacity of the replay buffer is too small.
    """
    rings: list[dict[str, Any]] = []
    for env, ring in enumerate(replay.rings):
        own = [episode.rows(replay.reward_scale) for episode in episodes[env :: len(replay.rings)]]
        rows = np.concatenate([*own, np.zeros((0, replay.rows.shape[1]), np.float32)])
        if len(rows) > ring.length:
            raise UsageError(
                f"data.capacity must be at least {len(rows) * len(replay.rings):,} for the rows of data.dataset, got "
                f"{replay.capacity:,}. Increase it, or use a smaller dataset."
            )
        counts = {"written": len(rows), "running": 0, "pending": 0, "transitions": len(rows) - len(own)}
        rings.append({**counts, "rows": [(0, torch.from_numpy(rows))]})
    replay.load_state_dict({**replay.position(), "priorities": {}, "rings": rings})


def checksum(episodes: Sequence[RecordedEpisode]) -> int:
    """Return the CRC32 of the rows of all episodes."""
    crc = 0
    for episode in episodes:
        crc = zlib.crc32(episode.rows(reward_scale=1.0).data, crc)
    return crc

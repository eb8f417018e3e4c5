"""The Minari dataset of a data module."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray

from td3_lightning.algorithm.agent import Agent
from td3_lightning.envs.wrappers import structured_space
from td3_lightning.errors import UsageError, require_float
from td3_lightning.replay.batch import MixedReplay
from td3_lightning.replay.buffer import Replay
from td3_lightning.replay.dataset_reader import find_dataset, read_dataset
from td3_lightning.replay.episodes import RecordedEpisode, checksum, describe, fill
from td3_lightning.replay.hindsight import HindsightReplay
from td3_lightning.replay.pixels import Pixels
from td3_lightning.seeding import new_generator


@dataclass(frozen=True)
class Dataset:
    """Choose a Minari dataset and its use. By default, the replay buffer has its transitions before the warm-up.

    Args:
        name: Id or folder of the dataset.
        share: Share of each batch that is drawn from the dataset, in [0, 1]. The replay buffer then has the agent's
            transitions only.
        offline: Learn from the dataset alone: no environment steps, only updates and evaluations. An epoch is
            `steps_per_epoch` * `updates_per_step` updates, and logs count updates.

    Raises:
        UsageError: The share is out of its range, or combined with `offline`.
    """

    name: str
    share: float | None = None
    offline: bool = False

    def __post_init__(self) -> None:
        if self.share is not None:
            require_float("data.dataset.share", self.share, least=0, most=1, fix="Use 0.5, for example.")
            if self.offline:
                raise UsageError("data.dataset.offline must be false with data.dataset.share, got true. Remove one.")

    def split(self, batch_size: int) -> tuple[int, int] | None:
        """Return how many transitions of a batch come from the agent and from the dataset; None without a share.

        A share between 0 and 1 gives at least one of each.
        """
        if self.share is None:
            return None
        count = min(max(round(self.share * batch_size), self.share > 0), batch_size - (self.share < 1))
        return batch_size - count, count


class DatasetSource:
    """Fill the replay buffer of the agent from a dataset, or add transitions of the dataset to each batch.

    A relative folder is resolved at construction, before an environment can change the working directory.

    Raises:
        UsageError: A dataset has no frames, and its share of a batch no priorities, but the settings require them.
    """

    def __init__(self, dataset: Dataset, batch_size: int, priority_alpha: float, pixels: Pixels | None) -> None:
        if pixels is not None or (dataset.share is not None and priority_alpha):
            first, second = ("pixels", "dataset") if pixels is not None else ("priority_alpha", "dataset.share")
            raise UsageError(f"data.{first} must not be set with data.{second}, which does not support it. Remove one.")
        self.name, self.counts = str(dataset.name), dataset.split(batch_size)
        self.own_batch_size = batch_size if self.counts is None else max(self.counts[0], 1)
        self.summary = ""  # of the episodes, after `load`
        self._identity = 0  # checksum of the episodes, after `load`
        self._checksum = 0  # that of the separate rows, if there are any
        self._has_effect = True  # False if it was added on a resume, which keeps the replay buffer
        self._folder = find_dataset(self.name)
        self._rows: Replay | None = None  # the dataset, if it is not in the agent's replay buffer
        self._obs = np.empty((0, 0), np.float32)

    def load(self, replay: Replay, env: gym.Env) -> None:
        """Read the dataset at the start of the first fit. A replay buffer that has transitions keeps them.

        Raises:
            UsageError: The dataset cannot be used in the environment, see `read_dataset`.
        """
        if self.summary:
            return
        spaces = [space for space in (env.observation_space, structured_space(env)) if space is not None]
        actions: Any = env.action_space
        episodes = read_dataset(self.name, self._folder, spaces, actions)
        if self.counts is not None:
            self._rows = _replay_of(episodes, replay, max(self.counts[1], 1))
        elif not replay.num_transitions:
            fill(replay, episodes)
        self._identity = checksum(episodes)
        self._checksum = self._identity if self._rows is None else zlib.crc32(self._rows.rows.numpy().data)
        self._obs = np.concatenate([episode.obs for episode in episodes]).astype(np.float32, copy=False)
        self.summary = describe(episodes)

    def observations_for(self, agent: Agent) -> NDArray[np.float32]:
        """Return the observations (n, obs_dim) for the statistics of an agent, or none if they contain the dataset."""
        counted = agent.counted_datasets
        if not self._has_effect or counted is None or self._identity in counted:
            return self._obs[:0]
        counted.append(self._identity)
        return self._obs

    def mixed_with(self, replay: Replay) -> Replay | MixedReplay:
        """Return the buffer that batches are sampled from."""
        return replay if self._rows is None or self.counts is None else MixedReplay(replay, self._rows, self.counts)

    def state_dict(self) -> dict[str, Any]:
        """Return the checksum of the dataset after `load`, and the generator if the rows are separate."""
        if not self.summary or not self._has_effect:
            return {}
        generator = {} if self._rows is None else {"generator": self._rows.generator.get_state()}
        return {"dataset": {"checksum": self._checksum, **generator}}

    def load_state_dict(self, state: Mapping[str, Any], replay: Replay) -> None:
        """Restore the generator of the separate rows. Warn if the run began without this dataset in its replay buffer.

        A restored replay buffer has more transitions than steps if it contains a dataset.

        Raises:
            UsageError: The dataset has changed since the checkpoint was saved.
        """
        saved = state.get("dataset", {})
        if not saved or ("generator" in saved) != (self._rows is not None):
            self._has_effect = self._rows is not None or replay.num_transitions > replay.steps_stored
            if not self._has_effect:
                rank_zero_warn(
                    f"data.dataset {self.name} has no effect, because the replay buffer of the checkpoint is kept. Use "
                    "--data.empty_replay true to begin with the dataset."
                )
            return
        if saved["checksum"] != self._checksum:
            raise UsageError(
                f"data.dataset must be the dataset with which the run began, got other numbers in {self.name}. Restore "
                "it, or start with an empty replay buffer (--data.empty_replay true)."
            )
        if self._rows is not None:
            self._rows.generator.set_state(saved["generator"])


def _replay_of(episodes: Sequence[RecordedEpisode], like: Replay, batch_size: int) -> Replay:
    """Return a replay buffer that holds exactly the episodes."""
    if isinstance(like, HindsightReplay):
        raise UsageError("data.her must not be set with data.dataset.share, which does not support it. Remove one.")
    rows = sum(len(episode.obs) for episode in episodes)
    replay = Replay(
        like.obs_dim,
        like.action_dim,
        capacity=max(rows, like.n_step + 2),
        batch_size=batch_size,
        n_step=like.n_step_schedule,
        gamma=like.gamma_schedule,
        reward_scale=like.reward_scale,
    )
    replay.generator = new_generator("dataset")  # other indices than the agent's replay buffer
    fill(replay, episodes)
    return replay

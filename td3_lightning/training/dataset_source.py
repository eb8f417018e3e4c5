"""The Minari dataset of a data module."""

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from td3_lightning.errors import UsageError
from td3_lightning.replay.buffer import Replay
from td3_lightning.replay.dataset_reader import find_dataset, read_dataset
from td3_lightning.replay.datasets import RecordedEpisode, checksum, describe, fill
from td3_lightning.replay.mixed import MixedReplay
from td3_lightning.seeding import new_generator


class DatasetSource:
    """Fill the replay buffer of the agent from a dataset, or add transitions of the dataset to each batch.

    A relative folder is resolved at construction, before an environment can change the working directory.

    Args:
        name: Id or folder of the dataset.
        counts: Transitions of the agent and of the dataset in a batch. None fills the agent's replay buffer.
    """

    def __init__(self, name: str, counts: tuple[int, int] | None) -> None:
        self.name, self.counts = name, counts
        self.summary = ""  # of the episodes, after `load`
        self._folder = find_dataset(name)
        self._rows: Replay | None = None  # the dataset, if it is not in the agent's replay buffer
        self._obs = np.empty((0, 0), np.float32)
        self._seen_by: WeakSet[object] = WeakSet()  # agents whose statistics contain the observations

    def load(
        self,
        replay: Replay,
        action_box: tuple[Sequence[float], Sequence[float]],
        observation_parts: Mapping[str, Any] | None = None,
    ) -> None:
        """Read the dataset at the start of the first fit. A replay buffer that has transitions keeps them.

        Raises:
            UsageError: The dataset cannot be used, see `read_dataset`.
        """
        if self.summary:
            return
        episodes = read_dataset(self.name, self._folder, replay.obs_dim, action_box, replay.capacity, observation_parts)
        if self.counts is not None:
            self._rows = _replay_of(episodes, replay, max(self.counts[1], 1))
        elif not replay.num_transitions:
            fill(replay, episodes)
        self._obs = np.concatenate([episode.obs for episode in episodes]).astype(np.float32, copy=False)
        self.summary = describe(episodes)

    def observations_for(self, agent: object) -> NDArray[np.float32]:
        """Return the observations (n, obs_dim) for the statistics of an agent, which need them once."""
        is_new = agent not in self._seen_by
        self._seen_by.add(agent)
        return self._obs if is_new else self._obs[:0]

    def mixed_with(self, replay: Replay) -> Replay | MixedReplay:
        """Return the buffer that batches are sampled from."""
        return replay if self._rows is None or self.counts is None else MixedReplay(replay, self._rows, self.counts)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the separate rows: the checksum and the generator. It is empty without such rows."""
        if self._rows is None:
            return {}
        return {"dataset": {"checksum": checksum(self._rows), "generator": self._rows.generator.get_state()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the generator of the separate rows.

        Raises:
            UsageError: The dataset has changed since the checkpoint was saved.
        """
        if self._rows is None or "dataset" not in state:
            return
        saved = state["dataset"]
        if saved["checksum"] != checksum(self._rows):
            raise UsageError(
                f"data.dataset must be the dataset with which the run began, got other numbers in {self.name}. Restore "
                "it, or start with an empty replay buffer (--data.empty_replay true)."
            )
        self._rows.generator.set_state(saved["generator"])


def _replay_of(episodes: Sequence[RecordedEpisode], like: Replay, batch_size: int) -> Replay:
    """Return a replay buffer that holds exactly the episodes."""
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

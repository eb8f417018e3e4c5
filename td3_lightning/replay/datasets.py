"""Recorded episodes: into a replay buffer, and as a Minari dataset (https://minari.farama.org)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Space
from numpy.typing import NDArray

from td3_lightning.errors import RunError, UsageError, one_line, shown
from td3_lightning.replay.buffer import Replay
from td3_lightning.replay.dataset_spaces import structured
from td3_lightning.replay.ring import TERMINATED, TRUNCATED

ROOT = "MINARI_DATASETS_PATH"  # environment variable of Minari


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


# Replay.


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


def checksum_of_rows(replay: Replay) -> int:
    """Return the CRC32 of all rows of a replay buffer."""
    return zlib.crc32(replay.rows.numpy().data)


# Export.


def datasets_folder() -> Path:
    """Return the folder of Minari's local datasets."""
    return Path(os.environ.get(ROOT) or "~/.minari/datasets").expanduser().absolute()


def import_minari() -> tuple[Any, Any]:
    """Import minari and h5py, which are optional.

    Raises:
        UsageError: One of them is not installed.
    """
    try:
        import h5py
        import minari
    except ImportError as error:
        raise UsageError(
            f"Minari datasets require minari and h5py, got none ({one_line(error)}). Use pip install "
            "'td3_lightning[minari]'."
        ) from error
    return minari, h5py


def new_dataset_id(name: str) -> str:
    """Return the id of a dataset that does not exist yet. A name without a version gets version 0.

    Raises:
        UsageError: The name is not an id, the dataset exists, or Minari is not installed.
    """
    import_minari()
    from minari.dataset.minari_dataset import parse_dataset_id

    found = name if re.search(r"-v\d+$", name) else f"{name}-v0"
    try:
        parse_dataset_id(found)
        exists = (datasets_folder() / found).exists()
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(
            f"dataset must be a name such as lander/expert-v0, got {shown(name)}. Use letters, digits, - and _, "
            "at least two in each part, and / after a namespace."
        ) from error
    if exists:
        raise _exists_error(found)
    return found


def _exists_error(dataset_id: str) -> UsageError:
    return UsageError(
        f"dataset must be a new name, got {dataset_id}, which is in {datasets_folder()}. Use another version."
    )


def write_dataset(
    dataset_id: str,
    episodes: Sequence[RecordedEpisode],
    observations: Space[Any],
    actions: Box,
    algorithm: str,
    text: str,
) -> Path:
    """Write episodes as a Minari dataset and return its folder. A failed attempt leaves no part of a dataset.

    Args:
        dataset_id: A result of `new_dataset_id`.
        episodes: The episodes.
        observations: Space of the observations: a flat Box, or the structure that was flattened.
        actions: Space of the actions.
        algorithm: Name of the agent.
        text: Description of the dataset.

    Raises:
        RunError: The files cannot be written.
        UsageError: The dataset exists. Another process may have written it since `new_dataset_id`.
    """
    minari, _ = import_minari()
    buffers = [_episode_buffer(episode, observations) for episode in episodes]
    folder = datasets_folder() / dataset_id
    with contextlib.ExitStack() as undo, _absolute_datasets_folder():
        if folder.exists():
            raise _exists_error(dataset_id)
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="minari")  # it misses the author and a link to the code
                minari.create_dataset_from_buffers(
                    dataset_id,
                    buffers,
                    observation_space=observations,
                    action_space=actions,
                    algorithm_name=algorithm,
                    description=text,
                )
        except FileExistsError as error:  # another process has begun to write it just now
            undo.pop_all()
            raise _exists_error(dataset_id) from error
        except OSError as error:
            raise RunError(
                f"The dataset cannot be written to {folder} ({one_line(error)}). Free some space."
            ) from error
        undo.pop_all()
    return folder


@contextlib.contextmanager
def _absolute_datasets_folder() -> Iterator[None]:
    """Make the path in Minari's environment variable absolute. Version 0.5.4 fails with a relative one."""
    before = os.environ.get(ROOT)
    os.environ[ROOT] = str(datasets_folder())
    try:
        yield
    finally:
        del os.environ[ROOT]
        if before is not None:
            os.environ[ROOT] = before


def _episode_buffer(episode: RecordedEpisode, space: Space[Any]) -> Any:
    """Return Minari's form of an episode."""
    from minari.data_collector import EpisodeBuffer

    is_last = np.arange(len(episode.reward)) == len(episode.reward) - 1
    return EpisodeBuffer(
        seed=episode.seed,
        observations=episode.obs if isinstance(space, Box) else structured(space, episode.obs),
        actions=episode.action,
        rewards=episode.reward,
        terminations=is_last & episode.terminated,
        truncations=is_last & episode.truncated,
        infos={},
    )

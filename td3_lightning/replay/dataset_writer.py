"""Writing of Minari datasets (https://minari.farama.org)."""

import re
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space, Tuple, unflatten
from gymnasium.vector.utils import concatenate, create_empty_array

from td3_lightning.errors import RunError, UsageError, one_line, shown
from td3_lightning.replay.dataset_reader import datasets_folder, import_minari
from td3_lightning.replay.episodes import RecordedEpisode


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
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"dataset must be a name such as lander/expert-v0, got {shown(name)}. Use letters, digits, - and _, "
            "at least two in each part, and / after a namespace."
        ) from error
    if (datasets_folder() / found).exists():
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
    buffers, folder = [_episode_buffer(episode, observations) for episode in episodes], datasets_folder() / dataset_id
    if folder.exists():
        raise _exists_error(dataset_id)
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
        raise _exists_error(dataset_id) from error
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise RunError(f"The dataset cannot be written to {folder} ({one_line(error)}). Free some space.") from error
    return folder


def _episode_buffer(episode: RecordedEpisode, space: Space[Any]) -> Any:
    """Return Minari's form of an episode."""
    from minari.data_collector import EpisodeBuffer

    is_last = np.arange(len(episode.reward)) == len(episode.reward) - 1
    obs: Any = episode.obs
    if not isinstance(space, Box):  # each part of the structure is an array (n, *shape)
        rows, empty = [unflatten(space, row) for row in obs], create_empty_array(space, len(obs))
        obs = concatenate(space, rows, empty)  # type: ignore[arg-type]
    return EpisodeBuffer(
        seed=episode.seed,
        observations=obs,
        actions=episode.action,
        rewards=episode.reward,
        terminations=is_last & episode.terminated,
        truncations=is_last & episode.truncated,
        infos={},
    )


def is_storable(space: Space[Any]) -> bool:
    """Return whether a dataset holds observations of a space exactly. Minari compresses pictures with loss."""
    from minari.dataset.minari_storage import is_image_space

    if isinstance(space, Dict | Tuple):
        parts = space.spaces.values() if isinstance(space, Dict) else space.spaces
        return all(map(is_storable, parts))
    return not is_image_space(space)

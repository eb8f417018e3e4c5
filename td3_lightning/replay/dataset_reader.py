"""Reading of Minari datasets (https://minari.farama.org).

Minari makes the environment that a dataset without spaces names, which runs code, and its iterator reads all infos. So
the spaces are compared as JSON, and the arrays are read with h5py.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space
from numpy.typing import NDArray

from td3_lightning.errors import UsageError, import_extra, one_line, shown
from td3_lightning.replay.episodes import RecordedEpisode
from td3_lightning.serialization.observation_parts import describe_space, leaf_numbers, leaves

ROOT = "MINARI_DATASETS_PATH"  # environment variable of Minari
STEP_ARRAYS = ("actions", "rewards", "terminations", "truncations")  # arrays of an episode besides the observations
BOUNDS = {"low", "high", "dtype"}  # of a Box; observations of another type or with other bounds are accepted


def datasets_folder() -> Path:
    """Return the folder of Minari's local datasets."""
    folder = Path(os.environ.get(ROOT) or "~/.minari/datasets").expanduser().absolute()
    if os.environ.get(ROOT):
        os.environ[ROOT] = str(folder)  # Minari 0.5.4 cannot write to a relative folder
    return folder


def import_minari() -> tuple[Any, Any]:
    """Import minari and h5py, which are optional; raise `UsageError` if one of them is not installed."""
    return import_extra("minari", "A dataset", "minari"), import_extra("h5py", "A dataset", "minari")


def find_dataset(name: str) -> Path | None:
    """Return the folder of the data, given the folder or the id of a dataset; None if it does not exist."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # a name that no file can have
        own = Path(name).expanduser().absolute()
        places = [own / "data", own, datasets_folder() / name / "data"]
        return next((place for place in places if (place / "metadata.json").is_file()), None)
    return None


def read_dataset(name: str, folder: Path | None, spaces: Sequence[Space[Any]], actions: Box) -> list[RecordedEpisode]:
    """Read all episodes of a dataset.

    Args:
        name: Id or folder, as the user wrote it.
        folder: Its folder, a result of `find_dataset`.
        spaces: Spaces of the observations that the dataset may have: flat numbers, then the structure that was
            flattened, if there was one. The keys of a dict may have another order.
        actions: Space of the actions.

    Raises:
        UsageError: The dataset is missing, empty or damaged, has other spaces, or contains a number that is not
            finite in float32.
    """
    minari, h5py = import_minari()
    if folder is None:
        raise UsageError(
            f"data.dataset must be the id or the folder of a Minari dataset, got {shown(name)}, which is not in "
            f"{datasets_folder()}. Write one with collect, or load one with minari download."
        )
    try:
        held = json.loads((folder / "metadata.json").read_text())
        if held["minari_version"] not in minari.supported_dataset_versions or held["data_format"] != "hdf5":
            raise ValueError(f"format {held['data_format']} of Minari {held['minari_version']}")
        space = _check_spaces(held, spaces, actions)
        path, count = folder / "main_data.hdf5", held["total_episodes"]
        episodes = list(_read_episodes(h5py, path, count, space, actions))
        _check_actions(episodes, actions)
        return episodes
    except UsageError as error:
        raise UsageError(f"{error} The dataset is {name}.") from error
    except Exception as error:  # Minari, h5py and JSON raise many kinds for a damaged file
        said = f"{type(error).__name__}: {one_line(error)[:80]}"
        raise UsageError(
            f"data.dataset must be a complete Minari dataset in the format hdf5, got {said} in {name}. Use "
            "another copy, or another version of minari."
        ) from error


def _check_spaces(held: Mapping[str, Any], spaces: Sequence[Space[Any]], actions: Box) -> Space[Any]:
    """Return the space of the observations of a dataset, given its metadata."""
    from minari.serialization import serialize_space

    found, fix = _without_bounds(held["observation_space"]), "Use the environment and the wrappers of the dataset."
    texts = [serialize_space(space) for space in spaces]
    for space, text in zip(spaces, texts, strict=True):
        if _without_bounds(text) == found:
            box = json.loads(held["action_space"])
            bounds, own = [box.get("low"), box.get("high")], [actions.low.tolist(), actions.high.tolist()]
            if not np.array_equal(np.array(bounds, np.float32), own):
                raise UsageError(f"The actions of data.dataset must be in {own}, got {shown(bounds)}. {fix}")
            return space
    expected = " or ".join(shown(_without_bounds(text)) for text in texts)
    raise UsageError(f"The observations of data.dataset must be {expected}, got {shown(found)}. {fix}")


def _without_bounds(text: str) -> Any:
    return json.loads(text, object_hook=lambda each: {name: each[name] for name in each if name not in BOUNDS})


def _read_episodes(h5py: Any, path: Path, episodes: int, space: Space[Any], actions: Box) -> Iterator[RecordedEpisode]:
    """Yield the episodes of a file."""
    kinds = {_array_name(part): kind for part, kind in leaves(describe_space(space))}
    with h5py.File(path, "r") as file:
        for number in range(episodes):
            own = {name: file[f"episode_{number}/{name}"][()] for name in (*kinds, *STEP_ARRAYS)}
            steps = len(own["rewards"])
            shapes = [(steps + 1, *kind.get("shape", ())) for kind in kinds.values()]
            shapes += [(steps, *actions.shape), (steps,), (steps,), (steps,)]
            if [array.shape for array in own.values()] != shapes:
                raise ValueError(f"other shapes than {shapes} in episode {number}")
            _check_finite(own, number)
            obs = np.concatenate([leaf_numbers(kind, own[name]) for name, kind in kinds.items()], axis=1)
            yield from _cut(obs, *(own[name] for name in STEP_ARRAYS))


def _array_name(path: Sequence[Any]) -> str:
    """Return the name of the array of a part of the observations, given its keys and indices."""
    return "/".join(["observations", *(name if isinstance(name, str) else f"_index_{name}" for name in path)])


def _check_finite(arrays: Mapping[str, NDArray[Any]], number: int) -> None:
    for name, array in arrays.items():
        with np.errstate(over="ignore"):
            finite = np.isfinite(array.astype(np.float32))
        if not finite.all():
            got = f"{array[~finite][0]} in the {name} of episode {number}"
            raise UsageError(f"data.dataset must have finite float32 numbers, got {got}. Remove the episode.")


def _check_actions(episodes: Sequence[RecordedEpisode], actions: Box) -> None:
    """Check that the agent can take the actions. The critics would learn the values of others, which it never takes."""
    taken = np.concatenate([episode.action for episode in episodes])
    rounding = 1e-5 * (actions.high.astype(np.float64) - actions.low)
    outside = ((taken < actions.low - rounding) | (taken > actions.high + rounding)).any(axis=1)
    if outside.any():
        raise UsageError(
            f"The actions of data.dataset must be in {actions.low.tolist()} to {actions.high.tolist()}, got "
            f"{outside.mean():.1%} others, for example {shown(taken[outside][0].tolist())}. Clip them, or use the "
            "environment of the dataset."
        )


def _cut(
    obs: NDArray[Any], action: NDArray[Any], reward: NDArray[Any], terminated: NDArray[Any], truncated: NDArray[Any]
) -> Iterator[RecordedEpisode]:
    """Cut a recording after each termination and truncation. The end of the recording truncates."""
    ends = np.flatnonzero(terminated.astype(bool) | truncated.astype(bool)) + 1
    for start, end in pairwise(dict.fromkeys([0, *ends.tolist(), len(reward)])):
        is_end = bool(terminated[end - 1]), bool(truncated[end - 1])
        part = slice(start, end)
        yield RecordedEpisode(
            obs[start : end + 1], action[part], reward[part], *(is_end if any(is_end) else (False, True))
        )

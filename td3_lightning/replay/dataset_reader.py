"""Reading of Minari datasets (https://minari.farama.org) with Box spaces of one axis.

A dataset may come from anybody. It is read as JSON and as arrays from its HDF5 file. Minari's own loader is not used,
because it makes the environment that a dataset names, which imports the environment's module.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from td3_lightning.errors import UsageError, one_line, shown
from td3_lightning.replay.datasets import RecordedEpisode, datasets_folder, import_minari

ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")


def find_dataset(name: str) -> Path | None:
    """Return the folder of the data, given the folder or the id of a dataset; None if it does not exist."""
    own = Path(name).expanduser().absolute()
    places = [own / "data", own, datasets_folder() / name / "data"]
    return next((place for place in places if (place / "metadata.json").is_file()), None)


def read_dataset(
    name: str, folder: Path | None, obs_dim: int, action_box: tuple[Sequence[float], Sequence[float]], capacity: int
) -> list[RecordedEpisode]:
    """Read all episodes of a dataset.

    Args:
        name: Id or folder, as the user wrote it.
        folder: Its folder, a result of `find_dataset`.
        obs_dim: Numbers in an observation of the environment.
        action_box: Smallest and largest actions of the environment, (action_dim,) each.
        capacity: Largest number of rows, one per transition and one per episode.

    Raises:
        UsageError: The dataset is missing, empty or damaged, has another version, other spaces or too many rows, or
            contains a number that is not finite in float32.
    """
    minari, h5py = import_minari()
    if folder is None:
        raise UsageError(
            f"data.dataset must be the id or the folder of a Minari dataset, got {shown(name)}, which is not in "
            f"{datasets_folder()}. Write one with collect, or load one with minari download."
        )
    source = _Source(name, folder)
    episodes = source.check_metadata(minari.supported_dataset_versions, obs_dim, action_box)
    found: list[RecordedEpisode] = []
    with source.open(h5py) as file:
        rows = 0
        for number in range(episodes):
            arrays = source.read(file, number, (obs_dim, len(action_box[0])), rows, capacity)
            rows += len(arrays[0])
            found += _cut(*arrays)
    if not found:
        raise source.refusal("at least one step", "none", "Use a dataset with recorded steps.")
    return found


@dataclass(frozen=True)
class _Source:
    """Read and check the files of one dataset."""

    name: str
    folder: Path

    def refusal(self, expected: str, got: str, fix: str) -> UsageError:
        return UsageError(f"data.dataset must have {expected}, got {got} in {self.name}. {fix}")

    def check_metadata(self, versions: set[str], obs_dim: int, box: tuple[Sequence[float], Sequence[float]]) -> int:
        """Check the version, the format and the spaces; return the number of episodes."""
        try:
            held = json.loads((self.folder / "metadata.json").read_text())
            version, data_format, episodes = held["minari_version"], held["data_format"], held["total_episodes"]
            obs_shape, _ = _box_of(held["observation_space"])
            action_shape, bounds = _box_of(held["action_space"])
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            said = f"{type(error).__name__}: {one_line(error)[:80]}"
            fix = "Use a dataset with Box spaces of one axis, written by Minari 0.4 or later."
            raise self.refusal("a metadata.json with Box spaces", said, fix) from error
        if version not in list(versions):  # it may be unhashable
            raise self.refusal(
                f"a version of Minari in {sorted(versions)}", shown(version), "Use another version of minari."
            )
        if data_format != "hdf5":
            raise self.refusal("the format hdf5", shown(data_format), "Use the data_format hdf5.")
        if obs_shape != [obs_dim]:
            fix = "Use the environment and the wrappers of the dataset."
            raise self.refusal(f"observations of shape ({obs_dim},)", shown(tuple(obs_shape)), fix)
        if action_shape != [len(box[0])] or not np.array_equal(bounds, np.array(box, np.float32)):
            fix = "Use the environment and the wrappers of the dataset."
            raise self.refusal(f"actions in {box[0]} to {box[1]}"[:100], shown(bounds.tolist()), fix)
        if not isinstance(episodes, int) or episodes < 1:
            raise self.refusal("at least one episode", shown(episodes), "Use a dataset with recorded episodes.")
        return episodes

    def open(self, h5py: Any) -> Any:
        try:
            return h5py.File(self.folder / "main_data.hdf5", "r")
        except OSError as error:
            raise self.refusal("an HDF5 file", one_line(error)[:80], "Use another copy.") from error

    def read(self, file: Any, number: int, dims: tuple[int, int], rows: int, capacity: int) -> list[NDArray[Any]]:
        """Return the observations, actions, rewards, terminations and truncations of an episode.

        The sizes are checked before the arrays are read, because a small file may claim any size.
        """
        try:
            parts = [file[f"episode_{number}"][name] for name in ARRAYS]
            steps = int(parts[2].shape[0])
            shapes = [part.shape for part in parts]
            kinds = [part.dtype.kind for part in parts]
            is_outside = any(part.external or part.is_virtual for part in parts)  # the numbers are in other files
        except Exception as error:  # h5py raises many kinds for a damaged or unusual file
            said = f"{type(error).__name__}: {one_line(error)[:80]}"
            raise self.refusal(f"five arrays in episode {number}", said, "Use another copy.") from error
        expected = [(steps + 1, dims[0]), (steps, dims[1]), (steps,), (steps,), (steps,)]
        if shapes != expected or not all(kind in "biuf" for kind in kinds) or is_outside:
            raise self.refusal(f"arrays of numbers {expected} in episode {number}", str(shapes), "Use another copy.")
        if rows + steps + 1 > capacity:
            raise UsageError(
                f"data.capacity must be at least {rows + steps + 1:,} for {number + 1:,} episodes of {self.name}, got "
                f"{capacity:,}. Increase it, or use a smaller dataset."
            )
        try:
            arrays = [part[()] for part in parts]
        except Exception as error:  # a checksum or a filter of HDF5 failed
            raise self.refusal(f"a readable episode {number}", one_line(error)[:80], "Use another copy.") from error
        self._check_finite(arrays[:3], number)
        return arrays

    def _check_finite(self, arrays: list[NDArray[Any]], number: int) -> None:
        for name, array in zip(ARRAYS, arrays, strict=False):
            with np.errstate(over="ignore"):
                finite = np.isfinite(array.astype(np.float32))
            if not finite.all():
                got = f"{array[~finite][0]} in the {name} of episode {number}"
                raise self.refusal("finite float32 numbers", got, "Remove the episode.")


def _box_of(text: Any) -> tuple[list[int], NDArray[np.float32]]:
    """Return the shape and the bounds (2, n) of a Box that Minari has serialized."""
    space = json.loads(text)
    if space["type"] != "Box":
        raise ValueError(f"a space of type {space['type']}")
    return list(space["shape"]), np.array([space["low"], space["high"]], np.float32)


def _cut(
    obs: NDArray[Any], action: NDArray[Any], reward: NDArray[Any], terminated: NDArray[Any], truncated: NDArray[Any]
) -> Iterator[RecordedEpisode]:
    """Cut a recording after each termination and truncation. The end of the recording truncates."""
    ends = np.flatnonzero(terminated.astype(bool) | truncated.astype(bool)) + 1
    for start, end in pairwise(dict.fromkeys([0, *ends.tolist(), len(reward)])):
        is_end = bool(terminated[end - 1]), bool(truncated[end - 1])
        is_terminated, is_truncated = is_end if any(is_end) else (False, True)
        part = slice(start, end)
        yield RecordedEpisode(obs[start : end + 1], action[part], reward[part], is_terminated, is_truncated)

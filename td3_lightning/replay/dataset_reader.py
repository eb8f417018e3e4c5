"""Reading of Minari datasets (https://minari.farama.org) into flat observations.

A dataset is untrusted input. It is read as JSON and as arrays from its HDF5 file. Minari's own loader is not used,
because it makes the environment that a dataset names, which imports the environment's module.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from td3_lightning.errors import UsageError, one_line, shown
from td3_lightning.replay.dataset_spaces import are_equal, array_name, describe_minari, text_of
from td3_lightning.replay.datasets import RecordedEpisode, datasets_folder, import_minari
from td3_lightning.serialization.observation_parts import PartError, leaf_numbers, leaves

STEP_ARRAYS = ("actions", "rewards", "terminations", "truncations")  # arrays of an episode besides the observations
SAME_ENV = "Use the environment and the wrappers of the dataset."


def find_dataset(name: str) -> Path | None:
    """Return the folder of the data, given the folder or the id of a dataset; None if it does not exist."""
    try:
        own = Path(name).expanduser().absolute()
        places = [own / "data", own, datasets_folder() / name / "data"]
        return next((place for place in places if (place / "metadata.json").is_file()), None)
    except (OSError, RuntimeError, ValueError):  # a name that is too long, has an unknown user or a null character
        return None


def read_dataset(
    name: str,
    folder: Path | None,
    obs_dim: int,
    action_box: tuple[Sequence[float], Sequence[float]],
    capacity: int,
    observation_parts: Mapping[str, Any] | None = None,
) -> list[RecordedEpisode]:
    """Read all episodes of a dataset.

    Args:
        name: Id or folder, as the user wrote it.
        folder: Its folder, a result of `find_dataset`.
        obs_dim: Numbers in an observation of the environment.
        action_box: Smallest and largest actions of the environment, (action_dim,) each.
        capacity: Largest number of rows, one per transition and one per episode.
        observation_parts: Description of the environment's observations before they were flattened, if they were. The
            dataset may have this structure, with the keys of a dict in any order, or flat observations.

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
    spaces = [{"type": "Box", "shape": [obs_dim]}, *([observation_parts] if observation_parts else [])]
    space, episodes = source.check_metadata(minari.supported_dataset_versions, spaces, action_box)
    found: list[RecordedEpisode] = []
    with source.open(h5py) as file:
        rows = 0
        for number in range(episodes):
            arrays = source.read(file, number, space, len(action_box[0]), rows, capacity)
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

    def check_metadata(
        self, versions: set[str], spaces: list[Any], box: tuple[Sequence[float], Sequence[float]]
    ) -> tuple[Mapping[str, Any], int]:
        """Check the version, the format and the spaces; return the space of the observations and the episodes."""
        try:
            held = json.loads((self.folder / "metadata.json").read_text())
            version, data_format, episodes = held["minari_version"], held["data_format"], held["total_episodes"]
            space = describe_minari(json.loads(held["observation_space"]))
            action_shape, bounds = _box_of(held["action_space"])
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
            said = f"{type(error).__name__}: {one_line(error)[:80]}"
            fix = "Use a dataset with the spaces of the environment, written by Minari 0.4 or later."
            raise self.refusal("a metadata.json with known spaces", said, fix) from error
        if version not in list(versions):  # it may be unhashable
            raise self.refusal(
                f"a version of Minari in {sorted(versions)}", shown(version), "Use another version of minari."
            )
        if data_format != "hdf5":
            raise self.refusal("the format hdf5", shown(data_format), "Use the data_format hdf5.")
        same = [own for own in spaces if are_equal(own, space)]
        if not same:
            expected = " or with the parts ".join(map(text_of, spaces))
            raise self.refusal(f"observations of shape {expected}", text_of(space), SAME_ENV)
        if action_shape != [len(box[0])] or not np.array_equal(bounds, np.array(box, np.float32)):
            raise self.refusal(f"actions in {box[0]} to {box[1]}"[:100], shown(bounds.tolist()), SAME_ENV)
        if not isinstance(episodes, int) or episodes < 1:
            raise self.refusal("at least one episode", shown(episodes), "Use a dataset with recorded episodes.")
        return same[0], episodes

    def open(self, h5py: Any) -> Any:
        path = self.folder / "main_data.hdf5"
        if path.exists() and not path.is_file():  # reading a pipe or a device may never end
            raise self.refusal("an HDF5 file", "a folder, a pipe or a device", "Use another copy.")
        try:
            return h5py.File(path, "r")
        except OSError as error:
            raise self.refusal("an HDF5 file", one_line(error)[:80], "Use another copy.") from error

    def read(
        self, file: Any, number: int, space: Mapping[str, Any], action_dim: int, rows: int, capacity: int
    ) -> list[NDArray[Any]]:
        """Return the observations (steps + 1, obs_dim), actions, rewards, terminations and truncations of an episode.

        The sizes are checked before the arrays are read, because a small file may claim any size.
        """
        kinds = {array_name(path): kind for path, kind in leaves(space)}
        parts, shapes, steps, are_numeric = self._find(file, number, [*kinds, *STEP_ARRAYS])
        expected = [(steps + 1, *kind.get("shape", ())) for kind in kinds.values()]
        expected += [(steps, action_dim), *[(steps,)] * 3]
        if shapes != expected or not are_numeric:
            raise self.refusal(f"arrays of numbers {expected} in episode {number}", str(shapes), "Use another copy.")
        if rows + steps + 1 > capacity:
            raise UsageError(
                f"data.capacity must be at least {rows + steps + 1:,} for {number + 1:,} episodes of {self.name}, got "
                f"{capacity:,}. Increase it, or use a smaller dataset."
            )
        try:
            arrays = {name: part[()] for name, part in parts.items()}
        except Exception as error:  # a checksum or a filter of HDF5 failed
            raise self.refusal(f"a readable episode {number}", one_line(error)[:80], "Use another copy.") from error
        self._check_finite(arrays, number)
        obs = [self._numbers(kind, arrays[name], f"{name} of episode {number}") for name, kind in kinds.items()]
        return [np.concatenate(obs, axis=1), *(arrays[name] for name in STEP_ARRAYS)]

    def _find(self, file: Any, number: int, names: Sequence[str]) -> tuple[dict[str, Any], list[Any], int, bool]:
        """Return the arrays of an episode, not read yet, their shapes, the steps, and whether they hold numbers."""
        try:
            found = {name: array_in(file, f"episode_{number}/{name}") for name in names}
            shapes = [part.shape for part in found.values()]
            steps = int(found["rewards"].shape[0])
            are_numeric = all(is_numeric(part, file) for part in found.values())
        except Exception as error:  # h5py raises many kinds for a damaged or unusual file
            said = f"{type(error).__name__}: {one_line(error)[:80]}"
            raise self.refusal(f"all arrays of episode {number}", said, "Use another copy.") from error
        return found, shapes, steps, are_numeric

    def _check_finite(self, arrays: Mapping[str, NDArray[Any]], number: int) -> None:
        for name, array in arrays.items():
            with np.errstate(over="ignore"):
                finite = np.isfinite(array.astype(np.float32))
            if not finite.all():
                got = f"{array[~finite][0]} in the {name} of episode {number}"
                raise self.refusal("finite float32 numbers", got, "Remove the episode.")

    def _numbers(self, kind: Mapping[str, Any], values: NDArray[Any], name: str) -> NDArray[Any]:
        try:
            return leaf_numbers(kind, values)
        except PartError as error:
            raise self.refusal(f"{error.expected} in the {name}", shown(error.got), "Remove the episode.") from error


def array_in(file: Any, path: str) -> Any:
    """Return an array of a file. A link is not followed, because it may lead to a pipe. Minari writes none."""
    held = file
    for name in path.split("/"):
        if type(held.get(name, getlink=True)).__name__ in ("SoftLink", "ExternalLink"):
            raise ValueError(f"{path} is a link")
        held = held[name]
    return held


def is_numeric(array: Any, file: Any) -> bool:
    """Return whether an array of a file holds numbers, in this file and not in another one."""
    is_outside = array.external or array.is_virtual or array.file != file
    return array.dtype.kind in "biuf" and not is_outside


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

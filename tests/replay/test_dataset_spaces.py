"""Datasets of structured observations: the round trip, and datasets that must be refused."""

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from td3_lightning import UsageError
from td3_lightning.replay.dataset_reader import find_dataset, read_dataset
from td3_lightning.replay.dataset_writer import is_storable, write_dataset
from td3_lightning.replay.episodes import RecordedEpisode
from tests.serialization.test_observation_parts import SPACES

h5py = pytest.importorskip("h5py")
minari = pytest.importorskip("minari")

NUMBERS = spaces.Box(-np.inf, np.inf, (2,), np.float64)
GOAL = spaces.Dict({"observation": NUMBERS, "desired_goal": NUMBERS, "achieved_goal": NUMBERS})
ALL = {**SPACES, "goal": GOAL, "precise": spaces.Dict({"a": NUMBERS, "b": spaces.Box(-9, 9, (1,), np.int64)})}
ACTIONS = spaces.Box(-1.0, 1.0, (1,))


def observations(space: Any) -> list[Any]:
    space.seed(3)
    return [space.sample() for _ in range(5)]


def recorded(space: Any) -> list[RecordedEpisode]:
    """Return two episodes as the recorder makes them from flattened observations."""
    obs = np.stack([spaces.flatten(space, each) for each in observations(space)])
    action, reward = np.linspace(-1, 1, 4, dtype=np.float32)[:, None], np.arange(4) / 3
    whole = RecordedEpisode(obs, action, reward, True, False)
    return [whole, RecordedEpisode(obs[2:], action[2:], reward[2:], False, True)]


def write(space: Any) -> Path:
    """Write the episodes in the structure of the space and return the folder of the data."""
    return write_dataset("some-v0", recorded(space), space, ACTIONS, "TD3", "a test") / "data"


def read(space: Any, env_space: Any = None) -> list[RecordedEpisode]:
    """Read the dataset for an environment with a space; by default, that of the dataset."""
    env_space = env_space or space
    return read_dataset("some-v0", find_dataset("some-v0"), [spaces.flatten_space(env_space), env_space], ACTIONS)


def assert_equal(found: list[RecordedEpisode], expected: list[RecordedEpisode]) -> None:
    for one, other in zip(found, expected, strict=True):
        for ours, theirs in zip(vars(one).values(), vars(other).values(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ALL)
def test_structured_transitions_survive_the_round_trip(name: str) -> None:
    write(ALL[name])
    assert_equal(read(ALL[name]), recorded(ALL[name]))


def test_minari_reads_the_original_structure() -> None:
    space: Any = SPACES["dict"]
    write(space)
    found = minari.load_dataset("some-v0")
    assert found.observation_space == space
    held = next(iter(found)).observations
    for at, obs in enumerate(observations(space)):
        np.testing.assert_array_equal(held["speed"][at], obs["speed"])
        assert held["gear"][at] == obs["gear"]
        for part, expected in zip(held["parts"], obs["parts"], strict=True):
            np.testing.assert_array_equal(part[at], expected)


def test_parts_have_the_order_of_the_environment() -> None:
    reverse = spaces.Dict(OrderedDict(reversed(GOAL.spaces.items())))
    write(reverse)
    for found, written in zip(read(GOAL), recorded(reverse), strict=True):
        np.testing.assert_array_equal(found.obs, written.obs[:, [4, 5, 2, 3, 0, 1]])


def test_pictures_are_not_stored_in_parts() -> None:
    assert not is_storable(spaces.Tuple([NUMBERS, spaces.Box(0, 255, (32, 40), np.uint8)]))
    assert is_storable(spaces.Tuple([NUMBERS, spaces.Dict({"a": spaces.Discrete(2)})]))


# Datasets that are refused.


def replaced(name: str, new: Any) -> Callable[[Path], None]:
    """Return a function that replaces an array of the second episode."""

    def replace(data: Path) -> None:
        with h5py.File(data / "main_data.hdf5", "a") as file:
            del file[f"episode_1/observations/{name}"]
            file[f"episode_1/observations/{name}"] = new

    return replace


def with_space(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def replace(data: Path) -> None:
        held = json.loads((data / "metadata.json").read_text())
        space = change(json.loads(held["observation_space"]))
        (data / "metadata.json").write_text(json.dumps({**held, "observation_space": json.dumps(space)}))

    return replace


GEARS = {"type": "Discrete", "n": 5, "start": -1}
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "nan": (replaced("speed", np.full((3, 1, 2), np.nan)), "nan in the observations/speed of episode 1"),
    "out of range": (replaced("gear", np.array([0, 3, 0])), "integers from -1 to 2"),
    "shape": (replaced("speed", np.zeros((3, 2))), "other shapes"),
    "other names": (with_space(lambda space: {**space, "subspaces": {"gear": GEARS}}), "observations"),
    "other size": (with_space(lambda space: space["subspaces"].update(gear=GEARS) or space), "observations"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_structure_is_one_sentence(damage: str) -> None:
    space: Any = SPACES["dict"]
    change, expected = DAMAGES[damage]
    change(write(space))
    with pytest.raises(UsageError) as caught:
        read(space)
    assert expected in str(caught.value)


def test_structure_needs_an_environment_that_has_it() -> None:
    write(GOAL)
    flat = [spaces.Box(-np.inf, np.inf, (6,))]
    for expected in (flat, [*flat, SPACES["dict"]]):
        with pytest.raises(
            UsageError, match=r"^The observations of data\.dataset must be .*the wrappers of the dataset"
        ):
            read_dataset("some-v0", find_dataset("some-v0"), expected, ACTIONS)

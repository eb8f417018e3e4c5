"""Recorded episodes in a replay buffer, in a Minari dataset and back; datasets that must be refused."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import recorded
from one_sentence import refused
from td3_lightning import Linear, UsageError
from td3_lightning.replay.buffer import Replay
from td3_lightning.replay.dataset_reader import find_dataset, read_dataset
from td3_lightning.replay.dataset_writer import write_dataset
from td3_lightning.replay.episodes import RecordedEpisode, fill

h5py = pytest.importorskip("h5py")
pytest.importorskip("minari")

STEP_NAMES = ("rewards", "terminations", "truncations")
ACTIONS = Box(-2, 2, (1,), np.float32)


def read(name: str = "recorded-v0") -> list[RecordedEpisode]:
    return read_dataset(name, find_dataset(name), [Box(-np.inf, np.inf, (3,), np.float32)], ACTIONS)


def replays(**settings: Any) -> tuple[Replay, Replay]:
    """Return two equal replay buffers that draw the same indices."""
    first, second = (Replay(3, 1, capacity=40, batch_size=64, gamma=0.9, **settings) for _ in range(2))
    second.generator.set_state(first.generator.get_state())
    return first, second


def step_by_step(replay: Replay, all_episodes: list[RecordedEpisode]) -> None:
    """Store recorded episodes as the Collector stores steps."""
    for number, episode in enumerate(all_episodes):
        last = len(episode.reward) - 1
        for at, (action, reward) in enumerate(zip(episode.action, episode.reward, strict=True)):
            ends = (episode.terminated and at == last, episode.truncated and at == last)
            env = number % len(replay.rings)
            replay.add(env, episode.obs[at], action, reward, *ends, episode.obs[at + 1])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write a dataset and return the folder of its files."""
    return recorded.write(tmp_path / "datasets")


def test_minari_reads_the_same_transitions(data: Path) -> None:
    import minari

    written, found = recorded.episodes(), list(minari.load_dataset("recorded-v0"))
    assert len(found) == len(written) == 4
    for ours, theirs in zip(written, found, strict=True):
        np.testing.assert_array_equal(theirs.observations, ours.obs)
        np.testing.assert_array_equal(theirs.actions, ours.action)
        np.testing.assert_array_equal(theirs.rewards, ours.reward)
        steps = len(ours.reward)
        assert theirs.terminations.tolist() == [False] * (steps - 1) + [ours.terminated]
        assert theirs.truncations.tolist() == [False] * (steps - 1) + [ours.truncated]


@pytest.mark.parametrize("name", ["recorded-v0", "datasets/recorded-v0", "datasets/recorded-v0/data"])
def test_transitions_survive_the_round_trip(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for ours, written in zip(read(name), recorded.episodes(), strict=True):
        for one, other in zip(vars(ours).values(), vars(written).values(), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "settings",
    [{}, {"n_step": 3, "reward_scale": 0.1}, {"num_envs": 2, "n_step": Linear(3, 1, 10)}, {"priority_alpha": 0.5}],
    ids=["one step", "n steps", "several", "prioritized"],
)
def test_filled_replay_equals_one_of_single_steps(settings: dict[str, Any]) -> None:
    filled, stepped = replays(**settings)
    fill(filled, recorded.episodes())
    step_by_step(stepped, recorded.episodes())
    stepped.steps_stored = 0  # transitions of a dataset are no environment steps
    assert torch.equal(filled.rows, stepped.rows)
    assert filled.num_transitions == sum(recorded.LENGTHS)
    for _ in range(3):
        for one, other in zip(filled.sample(), stepped.sample(), strict=True):
            assert torch.equal(one, other)


def test_a_recording_is_cut_after_each_end(data: Path) -> None:
    with h5py.File(data / "main_data.hdf5", "a") as file:
        file["episode_2/terminations"][:] = [False, True, False, False, False, False, False]
        file["episode_2/truncations"][:] = [False, False, False, False, True, False, False]
    whole = recorded.episodes()[2]
    cut = read()[2:5]
    assert [(len(each.reward), each.terminated, each.truncated) for each in cut] == [
        (2, True, False),
        (3, False, True),
        (2, False, True),
    ]
    np.testing.assert_array_equal(cut[1].obs, whole.obs[2:6])


# Datasets that are refused.


def metadata(data: Path, **changes: Any) -> None:
    path = data / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def values(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Return a function that replaces an array of the second episode."""

    def replace(data: Path) -> None:
        with h5py.File(data / "main_data.hdf5", "a") as file:
            changed = change(file[f"episode_1/{name}"][()])
            del file[f"episode_1/{name}"]
            file[f"episode_1/{name}"] = changed

    return replace


SPACE = '{"type": "Box", "dtype": "float32", "shape": [%d], "low": [%s], "high": [%s]}'
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "version": (lambda data: metadata(data, minari_version="9.9.9"), "9.9.9"),
    "observations": (lambda data: metadata(data, observation_space=SPACE % (4, "0", "1")), "'shape': [4]"),
    "actions": (lambda data: metadata(data, action_space=SPACE % (1, "-1", "1")), "[[-1], [1]]"),
    "no episode": (lambda data: metadata(data, total_episodes=0), "ValueError"),
    "missing episode": (lambda data: metadata(data, total_episodes=5), "KeyError"),
    "nested": (lambda data: (data / "metadata.json").write_text("[" * 100_000), "RecursionError"),
    "no file": (lambda data: (data / "main_data.hdf5").unlink(), "FileNotFoundError"),
    "nan": (values("rewards", lambda old: old * np.nan), "nan"),
    "shape": (values("actions", lambda old: old[:, [0, 0]]), "other shapes"),
    "text": (values("rewards", lambda old: np.full(len(old), b"a")), "ValueError"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_dataset_is_refused_in_one_sentence(damage: str, data: Path) -> None:
    change, got = DAMAGES[damage]
    change(data)
    with pytest.raises(UsageError) as caught:
        read()
    assert got in str(caught.value)
    assert "recorded-v0" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_actions_that_the_agent_cannot_take_are_refused(data: Path) -> None:
    values("actions", lambda old: np.float32(2.000001) + 0 * old)(data)  # rounding
    assert read()[1].action.max() > 2
    values("actions", lambda old: 2.1 + 0 * old)(data)
    said = r"must be in \[-2.0\] to \[2.0\], got 5.9% others, for example \[2.0999.*Clip them"
    with pytest.raises(UsageError, match=said):
        read()


def test_dataset_larger_than_the_replay_is_refused() -> None:
    replay = Replay(3, 1, capacity=24, num_envs=2, batch_size=4)
    with refused("data.capacity", "24", fix="Increase"):
        fill(replay, [*recorded.episodes(), *recorded.episodes()])


def test_environment_of_a_dataset_is_never_made(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile_environment.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    spec = {"id": "Hostile-v0", "entry_point": "hostile_environment:Env", "additional_wrappers": [], "kwargs": {}}
    metadata(data, env_spec=json.dumps(spec), eval_env_spec=json.dumps(spec))
    assert len(read()) == 4
    metadata(data, observation_space=None)  # Minari would make the environment to learn its space
    with pytest.raises(UsageError, match=r"^data\.dataset must be"):
        read()
    assert "hostile_environment" not in sys.modules


@pytest.mark.parametrize("moment", ["before the attempt", "in the attempt"])
def test_failed_write_keeps_the_dataset_of_another_process(
    data: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    if moment == "in the attempt":  # neither this package nor Minari finds it in time
        monkeypatch.setattr(Path, "exists", lambda *_, **__: False)
        monkeypatch.setattr("minari.utils.os.path.exists", lambda _: False)
    spaces = Box(-np.inf, np.inf, (3,), np.float32), Box(-2, 2, (1,), np.float32)
    with refused("dataset", "recorded-v0", fix="another version"):
        write_dataset("recorded-v0", recorded.episodes(), *spaces, "TD3", "a test")
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_termination_at_the_time_limit_does_not_bootstrap() -> None:
    replay = Replay(3, 1, capacity=40, batch_size=64)
    fill(replay, [dataclasses.replace(recorded.episodes()[0], truncated=True)])
    assert 0.0 in replay.sample().discount.tolist()

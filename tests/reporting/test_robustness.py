"""Check the measurement of robustness: its levels, episodes, table and files, and the command `robustness`."""

import csv
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from gymnasium.wrappers import FlattenObservation, FrameStackObservation

from td3_lightning import ActionNoise, ObservationNoise, ReplayData
from td3_lightning.cli.app import main
from td3_lightning.reporting.robustness import (
    Level,
    Measurement,
    measure,
    robustness_table,
    write_report,
)
from tests.cli.test_app import folder, last, trained  # noqa: F401  # the fixtures

LEVELS = [Level(0.0, 0.0), Level(0.1, 0.0), Level(0.0, 0.1)]


class Target(gym.Env[Any, Any]):
    """Observe 1 and reward actions by their distance to 1. An episode has 20 steps. Clipping does not matter."""

    observation_space = Box(-10.0, 10.0, (1,), np.float32)
    action_space = Box(-5.0, 5.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        error = float(abs(action[0] - 1))
        return np.ones(1, np.float32), -error, self.steps == 20, False, {"exact": error == 0.0}


def imitate(obs: Any) -> Any:
    """Return the observation as the action."""
    return obs


def measured(wrappers: list[Any] | None = None, episodes: int = 50) -> list[Measurement]:
    data = ReplayData(Target, wrappers=wrappers)
    return list(measure(imitate, data, LEVELS, range(episodes)))


def test_each_level_has_its_noise() -> None:
    without, observations, actions = measured(episodes=200)
    assert without.returns.tolist() == [0.0] * 200
    gauss = 20 * np.sqrt(2 / np.pi)  # expected sum of 20 absolute normal numbers
    assert observations.returns.mean() == pytest.approx(-0.1 * gauss, rel=0.05)
    assert actions.returns.mean() == pytest.approx(-1.0 * gauss, rel=0.05)


def test_noise_of_the_data_module_is_replaced() -> None:
    noisy = [lambda env: ObservationNoise(env, 0.5), lambda env: ActionNoise(env, 0.5)]
    known = [partial(ObservationNoise, std=0.5), partial(ActionNoise, std=0.5)]
    assert measured(known, 3)[0].returns.tolist() == [0.0] * 3
    assert measured(noisy, 3)[0].returns.max() < 0  # a function does not say what it makes


def test_noise_is_measured_where_the_wrappers_have_it() -> None:
    """Stacked observations contain the noise of each frame once."""
    seen: list[Any] = []
    stack = [partial(ObservationNoise, std=0.5), partial(FrameStackObservation, stack_size=2), FlattenObservation]
    data = ReplayData(Target, wrappers=stack)
    list(measure(lambda obs: seen.append(obs.copy()) or obs[:1], data, [Level(0.1, 0.0)], [1]))
    for earlier, later in pairwise(seen):
        assert earlier[1] == later[0] != later[1]


class Parts(gym.ObservationWrapper[Any, Any, Any]):
    """Return a dict of two observations."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = Dict(first=Target.observation_space, second=Target.observation_space)

    def observation(self, obs: Any) -> Any:
        return {"first": obs, "second": 2 * obs}


def test_dict_observations_get_noise_in_each_number() -> None:
    seen: list[Any] = []
    data = ReplayData(Target, wrappers=[Parts])
    list(measure(lambda obs: seen.append(obs) or obs[:1], data, [Level(0.1, 0.0)], [1]))
    first, second = np.array(seen).T
    assert first.std() == pytest.approx(0.1, rel=0.5)
    assert second.std() == pytest.approx(0.2, rel=0.5)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.6


def test_interval_is_that_of_the_mean() -> None:
    one = Measurement(LEVELS[0], [{"return": value} for value in (1.0, 3.0, 5.0, 7.0)])
    assert one.interval == pytest.approx(3.18245 * np.std([1, 3, 5, 7], ddof=1) / 2, rel=2e-3)
    assert np.isnan(Measurement(LEVELS[0], [{"return": 1.0}]).interval)


@pytest.fixture
def checkpoint(last: Path) -> str:  # noqa: F811
    """Return the checkpoint of a short run."""
    return str(last)


def test_command_writes_its_report(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    levels = ["--observation_noise=[0, 0.5]", "--action_noise=[0, 0.2]"]
    assert main(["robustness", "--ckpt_path", checkpoint, "--episodes=2", *levels]) == 0
    said = capsys.readouterr().out
    assert "noise 0.5 / 0.2: return -" in said
    assert "robustness/robustness.png" in said
    rows = list(csv.DictReader(Path("robustness/episodes.csv").read_text().splitlines()))
    assert [row["observation_noise"] for row in rows] == ["0.0", "0.0", "0.5", "0.5"]
    assert rows[0]["return"] != rows[2]["return"]


def test_every_cell_of_episodes_csv_is_a_number(tmp_path: Path) -> None:
    one = Measurement(LEVELS[0], [{"return": 1.0, "lap": True}, {"return": 2.0, "lap": False}])
    table, _ = write_report([one], tmp_path, "title")
    assert [float(row["lap"]) for row in csv.DictReader(table.read_text().splitlines())] == [1, 0]


SCORES = Measurement(Level(0.1, 0.0), [{"return": value, "length": value} for value in (1.0, 3.0, 5.0, 11.0)])


def test_table_has_the_mean_the_interval_and_the_minimum() -> None:
    names, cells = (list(column.cells) for column in robustness_table([SCORES]).columns)
    assert dict(zip(names, cells, strict=True)) == {
        "return, mean": "5.00",
        "95% interval": f"± {SCORES.interval:.2f}",
        "return, min": "1.00",
        "length": "5.00",
    }


def test_command_plays_the_seeds_of_test_at_three_levels(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def first_level(policy: Any, data: Any, levels: Any, seeds: Any) -> Any:
        asked.append((levels, seeds))
        return measure(policy, data, levels[:1], seeds)

    monkeypatch.setattr("td3_lightning.reporting.robustness.measure", first_level)
    assert main(["robustness", "--ckpt_path", checkpoint, "--episodes=2", "--data.test_seed=50077"]) == 0
    assert asked == [([Level(0.0, 0.0), Level(0.001, 0.01), Level(0.01, 0.03)], range(50077, 50079))]

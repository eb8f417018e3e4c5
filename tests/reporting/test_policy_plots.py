"""Check the pictures of a policy: value estimates, actions and the line of the car."""

import functools
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from td3_lightning import TD3, ActionRepeat, Pedals, ReplayData
from td3_lightning.replay.episodes import RecordedEpisode
from td3_lightning.reporting.policy_plots import (
    LineRecorder,
    discounted_returns,
    draw_actions,
    draw_values,
    write_policy_plots,
)


def agent(data: ReplayData) -> TD3:
    return TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[8]).eval()


def recorded(action: list[list[float]], reward: list[float], terminated: bool = False) -> RecordedEpisode:
    return RecordedEpisode(np.zeros((len(reward) + 1, 1)), np.array(action), np.array(reward), terminated, False)


def test_discounted_returns_are_exact_after_a_termination() -> None:
    episode = recorded([[0.0]] * 3, [1.0, 2.0, 4.0], terminated=True)
    assert discounted_returns(episode, 0.5, 100.0) == pytest.approx([1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4])


def test_values_are_in_the_units_of_the_environment() -> None:
    data = ReplayData("Pendulum-v1", gamma=0.9, reward_scale=0.1)
    module = agent(data)
    with torch.no_grad():
        for parameter in module.critics.parameters():
            parameter.zero_()
        list(module.critics.parameters())[-1].fill_(-2.0)  # bias of the output
    episode = LineRecorder(data.make_env()).play(module.act, 1)
    (axes,) = draw_values(module, data, [episode]).axes
    _, points = axes.lines
    assert np.unique(points.get_ydata()) == pytest.approx([-20.0])
    assert axes.get_title().startswith("mean estimate -20.00")
    assert len(points.get_xdata()) == len(discounted_returns(episode, 0.9, -20.0)) < 200
    assert len(discounted_returns(episode, 0.99, -2.0)) == 62  # the default discount; the estimate's weight is 0.25


def test_each_action_has_a_histogram_over_its_range() -> None:
    data = ReplayData("LunarLanderContinuous-v3")
    figure = draw_actions([recorded([[0.5, -1.0]] * 7, [0.0] * 7)], data)
    assert [axes.get_xlim() for axes in figure.axes] == [(-1, 1), (-1, 1)]
    assert [sum(bar.get_height() for bar in axes.patches) for axes in figure.axes] == [7, 7]


def test_line_of_the_car_is_drawn(tmp_path: Path) -> None:
    wrappers = [Pedals, functools.partial(ActionRepeat, repeat=50), lambda env: gym.wrappers.TimeLimit(env, 6)]
    data = ReplayData("td3_lightning/CarRacing-v0", {"track_seed": 123}, wrappers=wrappers)
    (*_, path) = write_policy_plots(agent(data), data, 1, tmp_path)
    assert path.name == "track.png"
    assert path.read_bytes().startswith(b"\x89PNG")

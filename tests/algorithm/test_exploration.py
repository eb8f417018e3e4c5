"""Test the exploration noise of `act(obs, deterministic=False)`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toys  # noqa: F401
from one_sentence import refused
from td3_lightning import TD3, Collector, Linear, ReplayData

LINEAR = Linear(0.2, 0.0, 80)
OBS = np.zeros((20_000, 3), np.float32)


def new_agent(noise: Any = None) -> TD3:
    """Return an agent whose greedy action is near the centres 3 and 0 of its box."""
    agent = TD3(3, [1.0, -0.5], [5.0, 0.5], hidden_dims=[4])
    agent.exploration_noise = noise
    return agent


def fit(make_trainer: Any, epochs: int = 1, noise: Any = LINEAR, ckpt_path: Any = None) -> TD3:
    data = ReplayData("toys/Counter-v0", steps_per_epoch=20, batch_size=4, capacity=500, eval_episodes=1)
    agent = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[4])
    trainer = make_trainer(max_epochs=epochs, callbacks=[Collector(10, noise)])
    trainer.fit(agent, datamodule=data, ckpt_path=ckpt_path)
    trainer.save_checkpoint(Path(trainer.default_root_dir, "run.ckpt"))
    return agent


def test_noise_std_is_the_setting_times_half_the_action_range() -> None:
    agent = new_agent(0.1)
    noise = agent.act(OBS, deterministic=False) - agent.act(OBS)
    np.testing.assert_allclose(noise.std(axis=0), [0.2, 0.05], rtol=0.03)
    np.testing.assert_allclose(noise.mean(axis=0), [0, 0], atol=0.01)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.03


def test_noise_follows_the_schedule_at_env_steps() -> None:
    agent = new_agent(LINEAR)
    agent.env_steps = 60
    noise = agent.act(OBS, deterministic=False) - agent.act(OBS)
    np.testing.assert_allclose(noise.std(axis=0), [0.1, 0.025], rtol=0.03)
    agent.env_steps = 80
    np.testing.assert_array_equal(agent.act(OBS, deterministic=False), agent.act(OBS))


def test_noisy_actions_stay_in_the_box_and_are_not_the_default() -> None:
    agent = new_agent(5.0)
    assert agent.act(OBS[0], deterministic=False).shape == (2,)
    actions = agent.act(OBS, deterministic=False)
    assert (actions >= [1.0, -0.5]).all()
    assert (actions <= [5.0, 0.5]).all()
    np.testing.assert_array_equal(agent.act(OBS), agent.act(OBS, deterministic=True))
    assert len(np.unique(agent.act(OBS), axis=0)) == 1


def test_an_agent_without_a_collector_has_no_noise() -> None:
    with refused("exploration_noise", "None", "Set agent.exploration_noise to a number, for example 0.1"):
        new_agent().act(OBS, deterministic=False)


def test_the_collector_and_checkpoints_hand_over_the_noise(make_trainer: Any, tmp_path: Path) -> None:
    agent = fit(make_trainer)
    loaded = TD3.load_from_checkpoint(tmp_path / "run.ckpt")
    for each in (agent, loaded):
        assert isinstance(each.exploration_noise, Linear)
        assert each.exploration_noise(each.env_steps) == LINEAR(30)
    np.testing.assert_array_equal(loaded.act(OBS, deterministic=False), agent.act(OBS, deterministic=False))
    np.testing.assert_array_equal(loaded.act(OBS, deterministic=False), agent.act(OBS, deterministic=False))


def test_a_resumed_run_uses_the_noise_of_its_own_collector(make_trainer: Any, tmp_path: Path) -> None:
    fit(make_trainer)
    agent = fit(make_trainer, epochs=2, noise=0.3, ckpt_path=tmp_path / "run.ckpt")
    assert agent.exploration_noise is not None
    assert agent.exploration_noise(agent.env_steps) == 0.3


def test_calls_of_act_do_not_change_a_run(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [each.clone() for each in fit(make_trainer).parameters()]
    step = TD3.training_step

    def exploring(self: TD3, *batch: Any) -> Any:
        self.act(OBS, deterministic=False)
        return step(self, *batch)

    torch.manual_seed(1)
    monkeypatch.setattr(TD3, "training_step", exploring)
    assert all(map(torch.equal, weights, fit(make_trainer).parameters()))

"""Check that callbacks of an earlier run do not change the run of a new agent."""

import copy
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, Collector, PolicyCheckpoint, ReplayData
from td3_lightning.checkpointing.last import LastCheckpoint
from td3_lightning.training.evaluation import SaveEvaluations, StopWhenSolved

SETTINGS = {"normalize_observations": True}


def run(callbacks: list[Callback], make_trainer: Any, module: TD3 | None = None) -> TD3:
    """Train an agent, or a new one."""
    L.seed_everything(7, verbose=False)
    data = ReplayData("toys/Seeded-v0", steps_per_epoch=21, batch_size=4, capacity=500, eval_episodes=2)
    agent = module or TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), **SETTINGS)
    saves = any(isinstance(each, LastCheckpoint) for each in callbacks)
    make_trainer(callbacks=callbacks, enable_checkpointing=saves).fit(agent, datamodule=data)
    return agent


def collector(**kwargs: Any) -> Collector:
    return Collector(10, random_steps=0, exploration_noise=0.0, **kwargs)  # no noise: its generator continues


@pytest.mark.parametrize("others", [(), (PolicyCheckpoint,), (SaveEvaluations, lambda: StopWhenSolved(1e9, 2))])
def test_new_agent_is_trained_as_by_new_callbacks(others: Any, make_trainer: Any) -> None:
    collect = {} if PolicyCheckpoint in others else {"collect": "episode"}
    used = [collector(**collect), *(make() for make in others)]
    fresh = [collector(**collect), *(make() for make in others)]
    run(used, make_trainer)
    states = [(run(callbacks, make_trainer), [each.state_dict() for each in callbacks]) for callbacks in (used, fresh)]
    for name, value in states[0][0].state_dict().items():
        torch.testing.assert_close(value, states[1][0].state_dict()[name], rtol=0, atol=0)
    for one, other in zip(*(saved for _, saved in states), strict=True):
        for state in (one, other):
            state.pop("clock_name", None)
            for rank in state.get("ranks", []):
                del rank["rng"]
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_callbacks_continue_with_the_same_agent(make_trainer: Any) -> None:
    callbacks = [collector(collect="episode"), SaveEvaluations(), StopWhenSolved(1e9, 2)]
    module = run(callbacks, make_trainer)
    ahead = callbacks[0].updates_ahead
    assert ahead < 0
    played = callbacks[2].played
    run(callbacks, make_trainer, module)
    assert len(callbacks[1].clocks) == 2
    assert callbacks[2].played > played
    assert callbacks[0].updates_ahead == 42 - (module.env_steps - 20)
    assert np.isfinite(callbacks[0].last_return)


@pytest.mark.parametrize("resumed", [False, True])
def test_earlier_episodes_of_an_agent_are_not_evaluated(resumed: bool, make_trainer: Any, tmp_path: Path) -> None:
    """`StopWhenSolved` is added to the callbacks of an agent that has trained without it."""
    path = tmp_path / "a.ckpt"
    agent = run([collector()], make_trainer)
    before = agent.episodes
    agent.trainer.save_checkpoint(path)
    solved = StopWhenSolved(1e9, 99)
    if resumed:
        data = ReplayData("toys/Seeded-v0", steps_per_epoch=21, batch_size=4, capacity=500, eval_episodes=2)
        agent = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), **SETTINGS)
        make_trainer(callbacks=[collector(), solved], max_epochs=2).fit(agent, datamodule=data, ckpt_path=path)
    else:
        agent = run([collector(), solved], make_trainer, TD3.load_from_checkpoint(path))
    assert 0 < before < solved.played <= agent.episodes
    assert len(solved.returns) == solved.played - before


@pytest.mark.parametrize("loaded", [False, True])
def test_policy_checkpoint_starts_over_with_other_data(loaded: bool, make_trainer: Any, tmp_path: Path) -> None:
    """The best return of another task, or of another agent, must not keep its policy."""
    used = [collector(), PolicyCheckpoint()]
    agent = run(used, make_trainer)
    agent.trainer.save_checkpoint(tmp_path / "a.ckpt")
    used[1].best_return = 1e9
    run(used, make_trainer, TD3.load_from_checkpoint(tmp_path / "a.ckpt") if loaded else agent)
    assert used[1].best_return < 1e9
    assert copy.deepcopy(used[1]).best_return == used[1].best_return

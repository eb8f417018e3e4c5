"""Check that callbacks continue with their agent, and are refused for another one."""

import copy
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, AveragedWeights, Collector, PolicyCheckpoint, ReplayData, UsageError
from td3_lightning.training.evaluation import SaveEvaluations, StopWhenSolved

SETTINGS = {"normalize_observations": True}


def run(callbacks: list[Callback], make_trainer: Any, module: TD3 | None = None, priority_alpha: float = 0.0) -> TD3:
    """Train an agent, or a new one."""
    L.seed_everything(7, verbose=False)
    settings: Any = {"steps_per_epoch": 21, "batch_size": 4, "capacity": 500, "eval_episodes": 2}
    data = ReplayData("toys/Seeded-v0", **settings, priority_alpha=priority_alpha)
    agent = module or TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), **SETTINGS)
    make_trainer(callbacks=callbacks).fit(agent, datamodule=data)
    return agent


def collector(**kwargs: Any) -> Collector:
    return Collector(10, random_steps=0, exploration_noise=0.0, **kwargs)  # no noise: its generator continues


MAKERS = {
    "PolicyCheckpoint": PolicyCheckpoint,
    "SaveEvaluations": SaveEvaluations,
    "StopWhenSolved": lambda: StopWhenSolved(1e9, 2),
    "AveragedWeights": AveragedWeights,
    "EarlyStopping": lambda: EarlyStopping("eval/return_mean"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_callback_of_another_agent_is_refused(name: str, make_trainer: Any) -> None:
    used = MAKERS[name]()
    run([used, collector()], make_trainer)
    data = ReplayData("toys/Seeded-v0")
    agent = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), **SETTINGS)
    before = copy.deepcopy(agent.state_dict())
    with pytest.raises(UsageError, match=f"{name} must have the TD3.* of its first fit, .* Use a new {name}."):
        run([used, collector()], make_trainer, agent)
    for weight, value in before.items():
        torch.testing.assert_close(agent.state_dict()[weight], value, rtol=0, atol=0)
    run([MAKERS[name](), collector()], make_trainer, agent)


def test_collector_of_another_agent_is_refused(make_trainer: Any) -> None:
    used = [collector()]
    run(used, make_trainer)
    with pytest.raises(UsageError, match="Use a new Collector"):
        run(used, make_trainer)


@pytest.mark.parametrize("name", [None, *MAKERS])
def test_refused_fit_does_not_use_up_its_callbacks(name: str | None, make_trainer: Any) -> None:
    callbacks = [MAKERS[name]()] if name else []
    callbacks.append(collector())
    with pytest.raises(UsageError, match="critic_loss must be huber"):
        run(callbacks, make_trainer, priority_alpha=0.4)
    run(callbacks, make_trainer)


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


def test_policy_checkpoint_of_another_task_is_refused(make_trainer: Any) -> None:
    """The best return of another task must not keep its policy."""
    used = PolicyCheckpoint()
    agent = run([collector(), used], make_trainer)
    with pytest.raises(UsageError, match="PolicyCheckpoint must have the TD3 and ReplayData of its first fit"):
        run([collector(), used], make_trainer, agent)

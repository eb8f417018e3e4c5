"""Check the running estimate with which `model.normalize_rewards` divides rewards."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, TD7, Batch, Collector, ReplayData, Trunk
from td3_lightning.envs.vector_env import Step
from td3_lightning.training.normalizer_inputs import NormalizerInputs, UnseenReturns
from tests.algorithm.test_normalization import AGENTS, new_agent, new_batch


def fit(make_trainer: Any, **settings: Any) -> tuple[Any, TD3, ReplayData]:
    """Train an agent in two environments for two epochs of 26 updates and an evaluation."""
    torch.manual_seed(0)
    data = ReplayData("toys/Seeded-v0", steps_per_epoch=26, batch_size=4, capacity=500, eval_episodes=2, num_envs=2)
    agent = TD3(3, data.action_low, data.action_high, (8,), **{"normalize_rewards": True, **settings})
    trainer = make_trainer(callbacks=[Collector(30)], max_epochs=2)
    trainer.fit(agent, datamodule=data)
    return trainer, agent, data


def test_estimate_is_that_of_every_training_return(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Step] = []
    add = UnseenReturns.add
    monkeypatch.setattr(UnseenReturns, "add", lambda self, step, gamma: steps.append(step) or add(self, step, gamma))
    trainer, agent, data = fit(make_trainer)
    trainer.callbacks[0].upkeep.unseen.pass_to(agent)  # those after the last update
    returns = []
    for env in range(2):
        total = 0.0
        for step in steps:
            total = step.reward[env] + 0.99 * total
            returns.append(total)
            if step.terminated[env] or step.truncated[env]:
                total = 0.0
    assert len(returns) == agent.env_steps > 78
    assert agent.episodes > 4
    assert agent.reward_normalizer.count == len(returns)
    np.testing.assert_allclose(agent.reward_normalizer.var, [np.var(returns)], rtol=1e-9)
    assert agent.reward_factor == pytest.approx(1 / math.sqrt(np.var(returns) + 1e-8), rel=1e-6)
    rewards = {reward for step in steps for reward in step.reward}
    assert set(data.replay.rings[0].rows[:9, -2].tolist()) <= {*map(np.float32, rewards), 0.0}  # raw in the replay


@pytest.mark.parametrize(("kind", "settings"), AGENTS)
def test_agent_equals_one_with_scaled_rewards(
    kind: Any, settings: dict[str, Any], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = new_agent(kind, {**settings, "normalize_rewards": True}, monkeypatch)
    plain = new_agent(kind, settings, monkeypatch)
    returns = torch.from_numpy(rng.normal(5, 3, (40, 1)))
    agent.reward_normalizer.update(returns)
    std = math.sqrt(returns.var(unbiased=False) + 1e-8)
    for update in range(6):
        batch = new_batch(rng)._replace(obs=torch.rand(16, 3), next_obs=torch.rand(16, 3))
        scaled: Batch = batch._replace(reward=(batch.reward.double() / std).float())
        logs = agent.training_step(batch, update), plain.training_step(scaled, update)
        torch.testing.assert_close(*({name: float(value.mean()) for name, value in each.items()} for each in logs))
    assert type(agent.update_rule) is type(plain.update_rule)
    names = {f"reward_normalizer.{name}" for name in ("count", "mean", "var")}
    assert agent.state_dict().keys() - plain.state_dict().keys() == names


def test_rewards_are_raw_before_the_first_return() -> None:
    agent = TD7(3, [-1.0], [1.0], (8,), zs_dim=4, normalize_rewards=True)
    reward = torch.tensor([1.0, -2.0])
    torch.testing.assert_close(agent.reward_normalizer(reward), reward)
    assert agent.reward_normalizer(reward.bfloat16()).dtype is torch.bfloat16


def test_new_episodes_start_with_zero() -> None:
    returns = UnseenReturns()
    returns.begin([0, 0, 0])
    still, ends = [False] * 3, [False, False, True]
    none = np.zeros((3, 1), np.float32)
    returns.add(Step(none, none, [1.0, 2.0, 3.0], still, ends, none, []), 0.5)
    other = UnseenReturns()
    other.load_state_dict(returns.state_dict())
    other.begin([4, 0, 0])  # the second episode could not be restored
    other.add(Step(none, none, [1.0, 1.0, 1.0], still, still, none, []), 0.5)
    assert other.state_dict()["returns"].tolist() == [1, 2, 3, 1.5, 1, 1]
    other.begin([4])  # another number of environments
    assert other.state_dict()["running_returns"].tolist() == [0]


def test_a_reset_instead_of_a_step_has_no_return() -> None:
    returns = UnseenReturns()
    returns.begin([3, 3])
    still = [False, False]
    none = np.zeros((2, 1), np.float32)
    returns.add(Step(none, none, [1.0, 2.0], still, still, none, []), 0.5)
    resets = np.array([True, False])
    returns.add(Step(none, none, [9.0, 2.0], still, still, none, [], resets), 0.5)
    state = returns.state_dict()
    assert state["returns"].tolist() == [1.0, 2.0, 3.0]
    assert state["running_returns"].tolist() == [0.0, 3.0]


def test_it_works_with_observations_and_an_encoder(make_trainer: Any, tmp_path: Path) -> None:
    trainer, agent, _ = fit(make_trainer, normalize_observations=True, encoder=Trunk([4]))
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    loaded = TD3.load_from_checkpoint(tmp_path / "run.ckpt")
    assert loaded.reward_factor == agent.reward_factor != 1


def test_checkpoints_without_the_estimate_load_if_it_is_off(make_trainer: Any, tmp_path: Path) -> None:
    trainer, _, _ = fit(make_trainer, normalize_rewards=False)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)
    assert "returns" not in saved["callbacks"]["Collector"]["ranks"][0]
    del saved["hyper_parameters"]["normalize_rewards"]  # an older version
    torch.save(saved, tmp_path / "old.ckpt")
    assert TD3.load_from_checkpoint(tmp_path / "old.ckpt").reward_factor == 1
    with pytest.raises(RuntimeError, match=r"Missing key.*reward_normalizer\.count"):
        TD3.load_from_checkpoint(tmp_path / "old.ckpt", normalize_rewards=True)


def test_returns_have_the_discount_of_the_data() -> None:
    data = ReplayData("toys/Seeded-v0", gamma=0.5, eval_episodes=1)
    agent = TD3(3, data.action_low, data.action_high, (8,), normalize_rewards=True)
    inputs, none = NormalizerInputs(), np.zeros((1, 1), np.float32)
    inputs.returns.begin([0])
    for _ in range(2):
        inputs.add(agent, data, Step(none, none, [1.0], [False], [False], none, []))
    assert inputs.state_dict()["returns"].tolist() == [1.0, 1.5]

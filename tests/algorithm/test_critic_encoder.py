"""Tests of `critic_encoder`: a network of its own for each critic."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from td3_lightning import TD3, Batch, Collector, ReplayData, Trunk, UsageError

OBS, ACTIONS, BATCH = 3, 2, 16


def agent(**settings: Any) -> TD3:
    defaults: dict[str, Any] = {"hidden_dims": [6], "critic_encoder": Trunk([5, 4]), "num_critics": 3}
    return TD3(OBS, [-1.0] * ACTIONS, [1.0] * ACTIONS, **{**defaults, **settings})


def value(module: TD3, number: int, obs: Tensor, action: Tensor) -> Tensor:
    """Return the values (batch,) of one critic, computed from its weights."""
    critics = module.critics
    hidden = torch.cat([critics.encoder[number](obs), action], dim=-1)
    first, _, last = critics.layers
    hidden = (hidden @ first.weight[number] + first.bias[number]).relu()
    return (hidden @ last.weight[number] + last.bias[number]).squeeze(-1)


@pytest.fixture
def threads() -> Any:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2])
def test_each_critic_has_its_own_encoder(count: int, threads: Any) -> None:
    threads(count)
    module = agent()
    obs, action = torch.randn(BATCH, OBS), torch.rand(BATCH, ACTIONS)
    expected = torch.stack([value(module, number, obs, action) for number in range(3)])
    features = module.critics.encoder(obs)
    torch.testing.assert_close(module.critics(features, action), expected)
    torch.testing.assert_close(module.critics.q1(features, action), expected[0])
    torch.testing.assert_close(module.q_value(obs, action), expected[0])
    weights = [next(encoder.parameters()) for encoder in module.critics.encoder]
    assert not torch.equal(weights[0], weights[1])


def test_actor_loss_uses_the_first_encoder_alone() -> None:
    module, calls = agent(), []
    for number, encoder in enumerate(module.critics.encoder):
        encoder.register_forward_hook(lambda *_, number=number: calls.append(number))
    obs, action = torch.randn(BATCH, OBS), torch.rand(BATCH, ACTIONS)
    module.actor_loss(Batch(obs, action, torch.zeros(BATCH), torch.zeros(BATCH), obs))
    module.q_value(obs, action)
    assert calls == [0, 0]


def test_critic_loss_trains_every_encoder_and_the_actor_none(make_trainer: Any) -> None:
    data = ReplayData("Pendulum-v1", steps_per_epoch=4, batch_size=8, eval_episodes=1)
    module = TD3(data.obs_dim, data.action_low, data.action_high, [6], critic_encoder=Trunk([5]), encoder=None)
    before = [weight.clone() for weight in module.critics.encoder.parameters()]
    make_trainer(max_epochs=1, callbacks=[Collector(warmup_steps=10)]).fit(module, datamodule=data)
    after = list(module.critics.encoder.parameters())
    assert len(after) == 4  # a weight and a bias of each of the two critics
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert next(iter(module.actor.layers)).in_features == data.obs_dim
    batch = Batch(*(torch.zeros(2, size) for size in (3, 1)), torch.zeros(2), torch.zeros(2), torch.zeros(2, 3))
    module.actor_loss(batch).backward(inputs=list(module.actor.parameters()))
    assert all(weight.grad is not None for weight in module.actor.parameters())


def test_actor_may_have_another_encoder() -> None:
    module = agent(encoder=Trunk([7], shared=False))
    assert module.actor.encoder[0].out_features == 7
    assert module(torch.zeros(4, OBS)).shape == (4, ACTIONS)


def test_checkpoint_restores_the_encoders(make_trainer: Any, tmp_path: Path) -> None:
    data = ReplayData("Pendulum-v1", steps_per_epoch=4, batch_size=8, eval_episodes=1)
    module = TD3(data.obs_dim, data.action_low, data.action_high, [6], critic_encoder=Trunk([5]))
    trainer = make_trainer(max_epochs=1, callbacks=[Collector(warmup_steps=10)])
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    loaded = TD3.load_from_checkpoint(tmp_path / "a.ckpt")
    obs, action = torch.randn(BATCH, OBS), torch.rand(BATCH, 1)
    assert torch.equal(loaded.q_value(obs, action), module.q_value(obs, action))


def test_shared_actor_encoder_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^encoder must have shared false with critic_encoder, .* got true\. Set "):
        agent(encoder=Trunk([7], shared=True))
    with pytest.raises(UsageError, match=r"^critic_encoder must be an Encoder, got 3\. "):
        agent(critic_encoder=3)

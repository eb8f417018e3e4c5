"""Encoders: who trains them, who sees them, and that a checkpoint knows them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, Batch, Collector, Encoder, ReplayData, Trunk, UsageError
from td3_lightning.cli.app import main

OBS, ACTIONS, BATCH = 3, 2, 16


class Cubes(Encoder):
    """A user's own: a linear layer between the observation's cubes and a tanh."""

    def __init__(self, width: int) -> None:
        self.width = width

    def build(self, obs_dim: int) -> nn.Module:
        class Network(nn.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.linear = nn.Linear(obs_dim, width)

            def forward(self, obs: Tensor) -> Tensor:
                return self.linear(obs**3).tanh()

        return Network(self.width)


class Linear(Encoder):
    """A layer such as the networks have themselves."""

    def build(self, obs_dim: int) -> nn.Module:
        return nn.Linear(obs_dim, 4)


def new_module(encoder: Any, **kwargs: Any) -> TD3:
    return TD3(OBS, [-1.0] * ACTIONS, [1.0] * ACTIONS, **{"hidden_dims": (8,), "encoder": encoder, **kwargs})


def new_batch() -> Batch:
    sizes = {"obs": (BATCH, OBS), "action": (BATCH, ACTIONS), "reward": (BATCH,), "next_obs": (BATCH, OBS)}
    drawn = {name: torch.randn(size) for name, size in sizes.items()}
    return Batch(**drawn, discount=torch.full((BATCH,), 0.9))


def gradients(loss: Tensor, module: nn.Module) -> list[bool]:
    """Whether a loss moves each parameter."""
    found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, retain_graph=True)
    return [gradient is not None and bool(gradient.any()) for gradient in found]


@pytest.mark.parametrize("encoder", [Trunk([6, 5]), Cubes(7)])
def test_a_shared_encoder_is_trained_by_the_critics_alone(encoder: Encoder) -> None:
    module, batch = new_module(encoder), new_batch()
    assert all(gradients(module.critic_loss(batch, module.draw_target_noise(batch.action))[0], module.critics.encoder))
    assert not any(gradients(module.actor_loss(batch), module.critics.encoder))
    assert not list(module.actor.encoder.parameters())
    assert any(gradients(module.actor_loss(batch), module.actor))
    features = module.critics.encoder(batch.obs).detach()
    expected = module.actor(features).detach().numpy()
    np.testing.assert_array_equal(module.act(batch.obs.numpy()), expected)


def test_an_encoder_of_its_own_is_trained_by_the_actor() -> None:
    module, batch = new_module(Trunk([6, 5], shared=False)), new_batch()
    assert all(gradients(module.actor_loss(batch), module.actor.encoder))
    assert not any(gradients(module.actor_loss(batch), module.critics.encoder))
    assert all(gradients(module.critic_loss(batch, module.draw_target_noise(batch.action))[0], module.critics.encoder))
    pairs = zip(module.actor.encoder.parameters(), module.critics.encoder.parameters(), strict=True)
    assert not any(torch.equal(one, other) for one, other in pairs)
    expected = module.actor.layers(module.actor.encoder(batch.obs)).tanh().detach().numpy()
    np.testing.assert_allclose(module.act(batch.obs.numpy()), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("shared", [True, False])
def test_the_target_is_what_a_reader_would_write(shared: bool) -> None:
    module, batch = new_module(Trunk([6], shared), policy_noise=0.0), new_batch()
    for target in (module.actor_target, module.critics_target):
        for parameter in target.parameters():
            parameter.data.normal_()  # unlike the online ones
    features = module.critics_target.encoder(batch.next_obs)
    seen = features if shared else module.actor_target.encoder(batch.next_obs)
    action = module.actor_target.layers(seen).tanh()
    expected = batch.reward + 0.9 * module.critics_target(features, action).amin(dim=0)
    torch.testing.assert_close(module.td_target(batch, torch.zeros_like(batch.action)), expected)


def test_a_trunk_before_heads_is_a_network_in_two_parts() -> None:
    whole, parts = new_module(None, hidden_dims=(6,)), new_module(Trunk([6], shared=False), hidden_dims=())
    parts.actor.layers[0].load_state_dict(whole.actor.layers[2].state_dict())
    parts.actor.encoder[0].load_state_dict(whole.actor.layers[0].state_dict())  # type: ignore[index]
    obs = np.random.default_rng(0).normal(size=(9, OBS))
    np.testing.assert_allclose(parts.act(obs), whole.act(obs), rtol=0, atol=1e-7)


@pytest.mark.parametrize("encoder", [Trunk([6]), Trunk([6], shared=False), Linear()])
def test_gradients_are_autograds_where_there_is_an_encoder(encoder: Encoder) -> None:
    fast = pytest.importorskip("td3_lightning.fast.manual_update")
    assert not fast.supports(new_module(encoder))
    assert fast.supports(new_module(None))


def train(encoder: Any, make_trainer: Any) -> tuple[TD3, Any]:
    data = ReplayData("toys/Seeded-v0", steps_per_epoch=20, batch_size=4, capacity=500, eval_episodes=1)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(8,), encoder=encoder, tau=0.5)
    trainer = make_trainer(callbacks=[Collector(10)])
    trainer.fit(module, datamodule=data)
    return module, trainer


@pytest.mark.parametrize("encoder", [Trunk([6]), Trunk([6], shared=False), Cubes(5)])
def test_all_parts_are_trained_and_averaged_and_saved(encoder: Encoder, make_trainer: Any, tmp_path: Path) -> None:
    begun = train(encoder, lambda **kwargs: make_trainer(limit_train_batches=0, **kwargs))[0]
    module, trainer = train(encoder, make_trainer)
    for name, weight in module.state_dict().items():
        if "scale" not in name and "centre" not in name:
            assert not torch.equal(weight, begun.state_dict()[name]), name
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = TD3.load_from_checkpoint(tmp_path / "last.ckpt")
    assert loaded.hparams["encoder"] == encoder.plain()
    assert all(map(torch.equal, loaded.state_dict().values(), module.state_dict().values()))
    obs = np.random.default_rng(0).normal(size=(9, 3))
    np.testing.assert_array_equal(loaded.act(obs), module.act(obs))


def test_a_configuration_names_it_and_the_checkpoint_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(
        "data: {env_id: Pendulum-v1, batch_size: 4, steps_per_epoch: 4, eval_episodes: 1, test_episodes: 1}\n"
        "model: {hidden_dims: [], encoder: {class_path: td3_lightning.Trunk, init_args: {widths: [6, 5]}}}\n"
        "collector: {warmup_steps: 10}\n"
        "trainer: {max_epochs: 1, enable_progress_bar: false}\n"
    )
    assert main(["fit", "--config", "run.yaml", "--model.encoder.init_args.shared=false"]) == 0
    last = "lightning_logs/run/version_0/checkpoints/last.ckpt"
    policy = TD3.load_from_checkpoint(last)
    assert [len(weight) for weight in policy.actor.encoder.parameters()] == [6, 6, 5, 5]
    assert main(["test", "--ckpt_path", last, "--trainer.enable_progress_bar=false"]) == 0
    assert main(["test", "--ckpt_path", last, "--model.encoder.init_args.widths=[7]"]) == 2


class Layers(Encoder):
    """Another user's own, of an encoder and a layer of some kind."""

    def __init__(self, first: Encoder, kind: str = "LayerNorm", arguments: Sequence[Any] = (4,)) -> None:
        self.first, self.kind, self.arguments = first, kind, list(arguments)

    def build(self, obs_dim: int) -> nn.Module:
        return nn.Sequential(self.first.build(obs_dim), getattr(nn, self.kind)(*self.arguments))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("BatchNorm1d", (4,)),
        ("InstanceNorm1d", (4, 1e-5, 0.1, False, True)),
        ("AlphaDropout", ()),
        ("Dropout", ()),
        ("GRU", (4, 4, 2, True, False, 0.5)),
        ("MultiheadAttention", (4, 1, 0.5)),
        ("RReLU", ()),
    ],
)
def test_layer_that_differs_in_training_is_refused(kind: str, arguments: Any) -> None:
    with pytest.raises(UsageError) as caught:
        new_module(Layers(Trunk([4]), kind, arguments))
    expected = f"encoder must behave the same in training and evaluation, got the layer {kind}. Use LayerNorm, "
    assert str(caught.value).startswith(expected)

"""Single actions against the actor's own, where the actor is and through a copy, which here is of the same CPU."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback
from torch import nn

from td3_lightning import TD3, Collector, ReplayData, UsageError
from td3_lightning.algorithm.encoders import Trunk
from td3_lightning.algorithm.networks import Actor
from td3_lightning.fast import single_action as acting
from td3_lightning.fast.single_action import CpuMirror
from tests.fast.test_manual_update import HIGH, LOW, new_batch, new_module


@pytest.fixture(params=[False, True], ids=["here", "away"])
def away(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether actors are taken for ones on a GPU, whose updates are counted."""
    if request.param:
        monkeypatch.setattr(acting, "_is_on_host", lambda actor: False)
        monkeypatch.setattr(TD3, "_actor_updates", lambda module: module.updates)
    return bool(request.param)


@pytest.mark.parametrize("hidden_dims", [(33, 17), (8,), ()], ids=str)
@pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "normed"])
@pytest.mark.usefixtures("away")
def test_a_single_action_is_the_actors_own(hidden_dims: tuple[int, ...], layer_norm: bool) -> None:
    module = new_module(hidden_dims=hidden_dims, layer_norm=layer_norm)
    for obs in new_batch(50).obs.numpy():
        for given in (obs, obs[None], obs.astype(np.float64)):
            action = module.act(given)
            expected = module.actor(torch.from_numpy(given).float()).detach().numpy()
            assert (action.shape, action.dtype) == (expected.shape, np.float32)
            np.testing.assert_allclose(action, expected.clip(*module.action_box), rtol=0, atol=1e-6)
        assert len(set(action)) == 3


@pytest.mark.usefixtures("away")
def test_single_actions_follow_the_weights() -> None:
    module, obs = new_module(), new_batch().obs[0].numpy()

    def changes(change: Callable[[], Any]) -> bool:
        before = module.act(obs).copy()
        change()
        after = module.act(obs)
        expected = module.actor(torch.from_numpy(obs).to(module.actor.scale)).detach().numpy()
        np.testing.assert_allclose(after, expected.clip(*module.action_box), rtol=0, atol=1e-6)
        return not np.array_equal(before, after)

    assert module._single_actions is None
    module.act(obs)
    assert module._single_actions is not None
    assert changes(lambda: module.actor.load_state_dict(Actor(4, LOW, HIGH, [33, 17]).state_dict()))
    assert changes(lambda: nn.init.normal_(module.actor.layers[0].weight))
    assert changes(lambda: setattr(module.actor.layers[0].weight, "data", torch.zeros(33, 4)))
    assert changes(lambda: module.load_state_dict(copy.deepcopy(module).state_dict(), assign=True)) is False
    assert changes(lambda: nn.init.normal_(module.actor.layers[0].weight))
    assert changes(lambda: setattr(module.actor.layers[2], "weight", nn.Parameter(torch.randn(17, 33))))
    assert changes(lambda: setattr(module.actor.layers, "0", nn.Linear(4, 33)))
    assert changes(lambda: setattr(module, "actor", Actor(4, LOW, HIGH)))
    hook = module.actor.layers[0].register_forward_hook(lambda layer, inputs, output: output + 1)
    assert changes(hook.remove)
    assert changes(lambda: module.actor.layers[0].register_forward_hook(lambda layer, inputs, output: output + 1))
    module.actor.layers[0]._forward_hooks.clear()
    assert changes(lambda: nn.init.normal_(copy.deepcopy(module).actor.layers[0].weight)) is False
    module.double()
    assert not changes(lambda: None)


@pytest.mark.usefixtures("away")
def test_single_actions_go_on_after_an_evaluation() -> None:
    module, obs = new_module(), new_batch().obs[0].numpy()
    with torch.inference_mode():  # as Lightning evaluates
        evaluated = module.act(obs)
    np.testing.assert_array_equal(module.act(obs), evaluated)


@pytest.mark.usefixtures("away")
def test_modules_act_where_single_actions_do_not() -> None:
    obs = new_batch().obs.numpy()
    with pytest.raises(UsageError, match="shape"):
        new_module().act(obs[0, :1])
    several, autograd = new_module(), new_module(gradients="autograd")
    encoded = [new_module(encoder=Trunk([6], shared=shared)) for shared in (True, False)]
    several.act(obs)
    assert several._single_actions is None
    for module in (autograd, *encoded):
        action = module.act(obs[0])
        assert module._single_actions is None
        np.testing.assert_allclose(action, module.act(obs)[0], rtol=0, atol=1e-6)
    several.act(obs[0])
    with torch.autocast("cpu", torch.bfloat16):
        rough = several.act(obs[0])
        assert several._single_actions is None
    assert np.abs(rough - several.act(obs[0])).max() > 1e-5


def fit(make_trainer: Any, *callbacks: Callback, kind: type[TD3] = TD3, **kwargs: Any) -> tuple[TD3, ReplayData]:
    L.seed_everything(3)
    data = ReplayData("Pendulum-v1", batch_size=16, steps_per_epoch=21, eval_episodes=1)
    module = kind(data.obs_dim, data.action_low, data.action_high, hidden_dims=(24, 16), policy_freq=3, **kwargs)
    make_trainer(callbacks=[Collector(20), *callbacks], max_epochs=2).fit(module, datamodule=data)
    return module, data


@pytest.mark.parametrize("gradients", ["manual", "compiled"])
def test_a_copy_fetches_after_the_actors_updates_alone(
    gradients: Any, make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the run takes no other way for."""
    monkeypatch.setattr(TD3, "_loss", lambda module, name: getattr(module, name))  # nothing to be compiled here
    plain, seen_plain = fit(make_trainer, gradients=gradients)
    fetched, calls, follow = [], [], CpuMirror.follow

    def noted(host: CpuMirror, updates: int | None) -> None:
        before = host.versions
        follow(host, updates)
        calls.append(updates)
        if host.versions is not before:
            fetched.append(updates)

    monkeypatch.setattr(acting, "_is_on_host", lambda actor: False)
    monkeypatch.setattr(CpuMirror, "follow", noted)
    copied, seen_copied = fit(make_trainer, gradients=gradients)
    assert len(calls) == 42 + 2 * 200, "training steps, and evaluations of an episode"
    # Anew for an evaluation and after it, too: one of them is at the 21st update, and one at the end.
    assert fetched == [*range(8), 7, 7, *range(8, 15), 14]
    assert torch.equal(seen_plain.replay.rows, seen_copied.replay.rows)
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, copied.state_dict()[name]), name


class Swapped(Callback):
    """Puts other weights in for an evaluation, as an average of them is."""

    def __init__(self) -> None:
        self.right: list[bool] = []

    def _swap(self, module: Any) -> None:
        weight = module.actor.layers[-1].weight
        weight.data.copy_(-weight.data)

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._swap(pl_module)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._swap(pl_module)

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self._check(pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self._check(pl_module)

    def _check(self, module: Any) -> None:
        obs = np.float32([0.6, 0.8, 1.0])
        expected = module.actor(torch.from_numpy(obs)).detach().numpy()
        self.right.append(np.allclose(module.act(obs), expected, rtol=0, atol=1e-6))


@pytest.mark.usefixtures("away")
def test_weights_put_in_for_an_evaluation_are_those_that_act(make_trainer: Any) -> None:
    swapped = Swapped()
    fit(make_trainer, swapped)
    assert swapped.right == [True] * (42 + 2)


def test_a_copy_has_memory_of_its_own_in_one_piece() -> None:
    actor = Actor(4, LOW, HIGH, (8,), layer_norm=True)
    host = CpuMirror(actor)
    host.follow(0)
    for (name, own), there in zip(host.network.state_dict().items(), actor.state_dict().values(), strict=True):
        assert torch.equal(own, there), name
        assert own.untyped_storage().data_ptr() == host.numbers.untyped_storage().data_ptr(), name
        assert own.data_ptr() != there.data_ptr()
    assert not any(weight.requires_grad for weight in host.network.parameters())
    assert all(weight.requires_grad for weight in actor.parameters())


class OwnStep(TD3):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx)


def test_an_actor_elsewhere_whose_updates_nobody_counts_acts_there(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fused Adam's step leaves no trace in a tensor, so that a copy would not notice it."""
    monkeypatch.setattr(acting, "_is_on_host", lambda actor: False)
    obs = np.float32([0.6, 0.8, 1.0])

    def check_acts_after_a_step(module: TD3) -> None:
        (actor_optimizer, _), before = module.configure_optimizers(), module.act(obs)
        module.actor(torch.from_numpy(obs)).sum().backward()
        actor_optimizer.step()
        expected = module.actor(torch.from_numpy(obs)).detach().numpy()
        assert np.abs(expected - before).min() > 1e-5
        np.testing.assert_allclose(module.act(obs), expected, rtol=0, atol=1e-6)
        assert module._single_actions is None

    check_acts_after_a_step(TD3(3, [-2.0], [2.0]))
    there: list[bool] = []
    watch = LambdaCallback(on_train_batch_end=lambda trainer, module, *_: there.append(module._single_actions is None))
    module, _ = fit(partial(make_trainer, limit_val_batches=0), watch)
    assert there == [False] * 42
    check_acts_after_a_step(module)
    fit(make_trainer, watch, kind=OwnStep)
    assert there[42:] == [True] * 42

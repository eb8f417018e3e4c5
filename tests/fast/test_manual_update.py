"""The gradients by hand against autograd's, and when autograd works instead."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from td3_lightning import TD3, Actor, Batch, Collector, Critics, ReplayData
from td3_lightning.algorithm import update_rules
from td3_lightning.algorithm.ensemble import EnsembleReLU
from td3_lightning.fast.manual_update import GradientPasses, ManualUpdate, supports
from td3_lightning.fast.mlp import (
    LANES,
    BFloat16Linear,
    Layer,
    LinearKernel,
)

LOW, HIGH = [-1.0, 0.5, -3.0], [2.0, 0.7, 3.0]


def new_module(seed: int = 1, **kwargs: Any) -> TD3:
    torch.manual_seed(seed)
    return TD3(4, LOW, HIGH, **{"hidden_dims": (33, 17), **kwargs})


def new_batch(size: int = 7, dtype: torch.dtype = torch.float32, seed: int = 2) -> Batch:
    random = torch.Generator().manual_seed(seed)
    shapes = [(size, 4), (size, 3), (size,), (size,), (size, 4)]
    return Batch(*(torch.randn(shape, generator=random, dtype=dtype) for shape in shapes))


def run_passes(module: TD3, passes: GradientPasses, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Write the gradients of both losses; return the losses and the Q-values."""
    noise = module.draw_target_noise(batch.action)
    with torch.no_grad():
        critic_loss, q = passes.critics(batch, noise)
        actor_loss = passes.actor(batch)
    parameters = [*module.critics.parameters(), *module.actor.parameters()]
    for parameter, gradient in zip(parameters, passes.critic_gradients + passes.actor_gradients, strict=True):
        parameter.grad = gradient
    return critic_loss, q, actor_loss


def gradients(module: TD3, batch: Batch, wanted: str) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return the gradient of every parameter by name, and both losses with the Q-values."""
    module.zero_grad()
    if wanted == "manual":
        passes = GradientPasses(module, len(batch.reward))
        run_passes(module, passes, new_batch(len(batch.reward), batch.obs.dtype, 100))  # leaves values in the buffers
    module.noise_generator.manual_seed(3)
    if wanted == "manual":
        critic_loss, q, actor_loss = run_passes(module, passes, batch)
    else:
        critic_loss, q = module.critic_loss(batch, module.draw_target_noise(batch.action))
        critic_loss.backward(inputs=list(module.critics.parameters()))
        actor_loss = module.actor_loss(batch)
        actor_loss.backward(inputs=list(module.actor.parameters()))
    found = {name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None}
    return found, [critic_loss.detach(), q.detach(), actor_loss.detach()]


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """As many as are asked for; two critics on two threads are worked out together."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("hidden_dims", [(2 * LANES, 17), (8,), ()], ids=str)
@pytest.mark.parametrize(("num_critics", "threads"), [(1, 1), (2, 1), (2, 2), (5, 1)], indirect=["threads"])
@pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-13), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("bias_with_relu", [False, True])
def test_gradients_and_losses_are_autograds(
    hidden_dims: tuple[int, ...],
    num_critics: int,
    layer_norm: bool,
    dtype: torch.dtype,
    close: float,
    threads: int,
    bias_with_relu: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("td3_lightning.fast.mlp.FUSE_BIAS_AND_RELU", bias_with_relu)
    module = new_module(hidden_dims=hidden_dims, num_critics=num_critics, layer_norm=layer_norm).to(dtype)
    for weight in module.parameters():  # or no gain would differ from 1, and no shift from 0
        weight.data += 0.1 * torch.rand_like(weight)
    batch = new_batch(dtype=dtype)
    ours, our_losses = gradients(module, batch, "manual")
    expected, losses = gradients(module, batch, "autograd")
    assert (
        ours.keys() == expected.keys() == {name for name, weight in module.named_parameters() if weight.requires_grad}
    )
    for name, gradient in expected.items():
        assert gradient.abs().max() > 1e-3
        torch.testing.assert_close(ours[name], gradient, rtol=close, atol=close)
    for one, other in zip(our_losses, losses, strict=True):
        torch.testing.assert_close(one, other, rtol=close, atol=close)


def test_the_huber_loss_has_autograds_gradients_and_td_errors() -> None:
    module, batch = new_module(critic_loss="huber", layer_norm=True), new_batch(40)
    ours, our_losses = gradients(module, batch, "manual")
    our_error = module._td_error["td_error"]
    expected, losses = gradients(module, batch, "autograd")
    error = module._td_error["td_error"]
    assert error.shape == (40,)
    assert 0 < (error > 1).sum() < 40  # both parts of the loss
    for one, other in zip([*ours.values(), *our_losses, our_error], [*expected.values(), *losses, error], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])  # as the actor's weights are
def test_bf16_linear_rounds_its_factors_and_its_products(transposed: bool) -> None:
    torch.manual_seed(1)
    weight = torch.randn(2, 70, 90).mT if transposed else torch.randn(2, 90, 70)
    inputs, slope, bias = torch.randn(2, 11, 90), torch.randn(2, 11, 70), torch.randn(2, 1, 70)
    product = BFloat16Linear(Layer(weight, bias, []), batch_size=11)
    sums, gradient, of_bias, below = (torch.full_like(of, torch.nan) for of in (slope, weight, bias, inputs))
    product.forward(inputs, sums)
    product.backward(slope, Layer(gradient, of_bias, []), below)
    assert torch.equal(of_bias, slope.sum(1, keepdim=True))
    x, w, s = (of.bfloat16().double() for of in (inputs, weight, slope))
    unbiased = torch.empty_like(sums)
    product.with_weights(Layer(weight, torch.zeros(2, 1, 70), [])).forward(inputs, unbiased)
    assert torch.equal(sums, unbiased + bias)
    for made, exact in ((unbiased, x @ w), (gradient, x.mT @ s), (below, s @ w.mT)):
        assert made.dtype == torch.float32
        torch.testing.assert_close(made.double(), exact, rtol=2**-8, atol=1e-5)
        assert torch.equal(made, made.bfloat16().float())
    only, of_weight = torch.full_like(inputs, torch.nan), gradient.clone()
    product.backward(2 * slope, None, only)
    assert torch.equal(only, 2 * below)
    assert torch.equal(gradient, of_weight)


@pytest.mark.parametrize("bias_with_relu", [False, True])
@pytest.mark.parametrize("kind", [LinearKernel, BFloat16Linear])
@pytest.mark.parametrize("fan_out", [1, LANES - 1, LANES, LANES + 1, 3 * LANES])
@pytest.mark.parametrize("members", [1, 2])
def test_a_relu_hides_no_nan(
    bias_with_relu: bool, kind: type[LinearKernel], fan_out: int, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("td3_lightning.fast.mlp.FUSE_BIAS_AND_RELU", bias_with_relu)
    torch.manual_seed(1)
    inputs, weight, bias = (torch.randn(members, *shape) for shape in ((7, 5), (5, fan_out), (1, fan_out)))
    bias[-1, 0, -1] = torch.nan
    product = kind(Layer(weight, bias, []), 7, relu=True)
    found, wanted = product.forward(inputs, torch.empty(members, 7, fan_out)), (inputs @ weight + bias).relu()
    assert wanted.isnan().sum() == 7
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02, equal_nan=True)


@pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "normed"])
def test_manual_autocast_gradients_are_closer_than_autograds(layer_norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("td3_lightning.fast.mlp.WIDE", 64)

    def distance(came: Tensor, wanted: Tensor) -> float:
        return ((came.float() - wanted).norm() / wanted.norm()).item()

    worst, usual = [], []  # gradients of each draw; one alone may have a small gradient and a large error
    for seed in range(20):
        module = new_module(seed, hidden_dims=(96, 80), layer_norm=layer_norm)
        batch = new_batch(64, seed=seed)
        exact, exact_losses = gradients(module, batch, "autograd")
        with torch.autocast("cpu", torch.bfloat16):
            ours, our_losses = gradients(module, batch, "manual")
            autograds, losses = gradients(module, batch, "autograd")
        away = [distance(ours[name], gradient) for name, gradient in exact.items()]
        assert min(away) > 0
        worst.append(max(away))
        usual.append(max(distance(autograds[name], gradient) for name, gradient in exact.items()))
        assert all(loss.dtype == torch.float32 for loss in our_losses)
        assert distance(our_losses[0], exact_losses[0]) < 0.01
        assert (our_losses[2] - exact_losses[2]).abs() < 0.01 * exact_losses[1].abs().mean()
        of_q, of_usual_q = (distance(came, exact_losses[1]) for came in (our_losses[1], losses[1]))
        assert of_q < min(0.01, of_usual_q)
    assert np.median(worst) < min(0.05, float(np.median(usual)))


class Doubled(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another kind": lambda layers: setattr(layers, "2", nn.Tanh()),
    "a subclass": lambda layers: setattr(layers, "0", Doubled(4, 33)),
    "without a bias": lambda layers: setattr(layers, "0", nn.Linear(4, 33, bias=False)),
    "parametrized": lambda layers: weight_norm(layers[0]),
    "hooked": lambda layers: layers[0].register_forward_hook(lambda layer, inputs, output: 2 * output),
    "hooked before": lambda layers: layers[0].register_forward_pre_hook(lambda layer, inputs: (2 * inputs[0],)),
    "another epsilon": lambda layers: setattr(layers[1], "eps", 1.0),
    "frozen": lambda layers: layers[3].requires_grad_(False),
    "a replaced method": lambda layers: setattr(layers[0], "extra_repr", str),
    "its gradient changed": lambda layers: layers[0].weight.register_hook(torch.zeros_like),
    "its gradient read": lambda layers: layers[0].bias.register_post_accumulate_grad_hook(lambda weight: None),
    "its backward pass heard": lambda layers: layers[0].register_full_backward_hook(lambda layer, below, above: None),
    "ahead of its backward pass": lambda layers: layers[0].register_full_backward_pre_hook(lambda layer, above: None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_layer_disables_manual_gradients(change: str) -> None:
    module = new_module(layer_norm=True)
    assert supports(module)
    CHANGES[change](module.actor.layers)
    assert not supports(module)


class Residual(nn.Sequential):
    """Layers of a user that compute something else."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + 1


class Rebuilt(TD3):
    """Agent whose networks differ from its settings."""

    changed: ClassVar[str]

    def build_networks(self) -> tuple[Any, Any]:
        actor, critics = super().build_networks()
        if self.changed == "no ReLU":
            del actor.layers[1]
        elif self.changed == "a ReLU at the end":
            critics.layers.append(EnsembleReLU())
        elif self.changed == "layer norm":
            actor = Actor(4, LOW, HIGH, (33, 17), layer_norm=True)
        elif self.changed == "an encoder of the actor":
            actor = Actor(8, LOW, HIGH, (33, 17), encoder=nn.Sequential(nn.Linear(4, 8), nn.Tanh()))
        elif self.changed == "a layer beside the others":
            actor.more = nn.Linear(len(LOW), len(LOW))  # it would fit behind the last layer
        elif self.changed == "a weight beside the layers":
            critics.more = nn.Parameter(torch.ones(1))
        elif self.changed == "a layer that is used twice":
            actor = Actor(4, LOW, HIGH, (4, 4))
            actor.layers[2] = actor.layers[0]
        elif self.changed == "another container":
            actor.layers = Residual(*actor.layers)
        else:
            critics = Critics(8, 3, (33, 17), encoder=nn.Sequential(nn.Linear(4, 8), nn.Tanh()))
        return actor, critics


NETWORKS = [
    *("no ReLU", "a ReLU at the end", "layer norm", "an encoder of the actor", "an encoder of the critics"),
    *("a layer beside the others", "a weight beside the layers", "a layer that is used twice"),
    "another container",
]


@pytest.mark.parametrize("changed", NETWORKS)
def test_other_networks_of_a_subclass_use_autograd(changed: str) -> None:
    assert not supports(type("Other", (Rebuilt,), {"changed": changed})(4, LOW, HIGH, hidden_dims=(33, 17)))


class MovedTarget(TD3):
    """Put the target critics into other memory, as many scripts do."""

    def update_targets(self) -> None:
        for online, target in zip(self.critics.parameters(), self.critics_target.parameters(), strict=True):
            target.data = 0.5 * online.data + 0.5 * target.data


class ReplacedTarget(TD3):
    """Copy the critics as new target critics."""

    def update_targets(self) -> None:
        self.critics_target = copy.deepcopy(self.critics)


class ClippedCritics(TD3):
    """Limit the weights of the critics."""

    def update_targets(self) -> None:
        for weight in self.critics.parameters():
            weight.data = weight.data.clamp(-0.1, 0.1)


@pytest.mark.parametrize("agent_class", [MovedTarget, ReplacedTarget, ClippedCritics])
def test_weights_that_a_user_moves_are_used(
    agent_class: type[TD3], make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> TD3:
        L.seed_everything(1)
        data = ReplayData("Pendulum-v1", steps_per_epoch=20, batch_size=4, capacity=100, eval_episodes=1)
        agent = agent_class(data.obs_dim, data.action_low, data.action_high, hidden_dims=[16], critic_lr=0.1)
        make_trainer(callbacks=[Collector(warmup_steps=20)]).fit(agent, datamodule=data)
        return agent

    ours = trained()
    assert isinstance(ours.update_rule, ManualUpdate)
    monkeypatch.setattr(update_rules, "_factories", [])
    for weight, expected in zip(ours.parameters(), trained().parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-4)


def test_anomaly_detection_uses_autograd() -> None:
    with torch.autograd.set_detect_anomaly(True):
        assert not supports(new_module())


class AfterBackward(TD3):
    """Count the calls of a hook after the backward pass."""

    calls = 0

    def on_after_backward(self) -> None:
        self.calls += 1


@pytest.mark.parametrize("hook", ["on_before_backward", "on_after_backward", None])
def test_backward_hooks_are_called_for_every_backward_pass(hook: str | None, make_trainer: Any) -> None:
    data = ReplayData("Pendulum-v1", steps_per_epoch=4, batch_size=4, capacity=100, eval_episodes=1)
    agent = (TD3 if hook else AfterBackward)(data.obs_dim, data.action_low, data.action_high, hidden_dims=[5])
    calls: list[Any] = []
    callbacks = [LambdaCallback(**{hook: lambda *args: calls.append(args)})] if hook else []
    make_trainer(callbacks=[Collector(warmup_steps=4), *callbacks]).fit(agent, datamodule=data)
    assert len(calls) + getattr(agent, "calls", 0) == 4 + 2  # of the critics and of the actor


def test_several_processes_use_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    assert supports(new_module())
    monkeypatch.setattr("td3_lightning.fast.manual_update.world_size", lambda: 2)
    assert not supports(new_module())


def test_settings_that_manual_gradients_do_not_support() -> None:
    assert supports(new_module(layer_norm=True, critic_loss="huber"))
    assert not supports(new_module(bc_weight=0.4))
    module = new_module()
    module.settings.critic_loss = "l1"  # type: ignore[assignment]  # a loss that a user has added to losses.py
    assert not supports(module)
    with torch.autocast("cpu", torch.float16):
        assert not supports(new_module())


def test_replaced_loss_uses_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    assert supports(new_module())
    monkeypatch.setattr("td3_lightning.algorithm.td3.CRITIC_LOSSES", {"mse": lambda error: (error.abs().mean(), {})})
    assert not supports(new_module())


def test_critic_with_another_value_for_the_actor_uses_autograd() -> None:
    module = new_module()
    module.critics.q1 = lambda features, action: module.critics(features, action).amin(dim=0)
    assert not supports(module)


def test_reduced_matmul_precision_uses_autograd() -> None:
    module = new_module()
    assert supports(module)
    torch.set_float32_matmul_precision("medium")
    assert not supports(module)

"""The gradients by hand against autograd's, and when autograd works instead."""

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from td3_lightning import TD3, Actor, Batch, Collector, Constant, Critics, ReplayData
from td3_lightning.algorithm.ensemble import EnsembleReLU
from td3_lightning.algorithm.update_rules import find_update_rule
from td3_lightning.fast.manual_update import GradientPasses, ManualUpdate, make_rule, supports
from td3_lightning.fast.mlp import (
    LANES,
    WIDE,
    BatchedMLP,
    BFloat16Linear,
    Layer,
    LinearKernel,
    SparseBackwardLinear,
)
from td3_lightning.fast.sparse_backward import max_active_fraction, sparse_linear_backward

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
        critic_loss, q = passes.critics(*batch, noise)
        actor_loss = passes.actor(*batch)
    parameters = [*module.critics.parameters(), *module.actor.parameters()]
    for parameter, gradient in zip(parameters, passes.critic_gradients + passes.actor_gradients, strict=True):
        parameter.grad = gradient
    return critic_loss, q, actor_loss


def gradients(module: TD3, batch: Batch, wanted: str) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return the gradient of every parameter by name, and both losses with the Q-values."""
    module.zero_grad()
    if wanted == "manual":
        passes = GradientPasses(module, len(batch.reward))
        for other in range(3):  # so that the traced passes are compared
            run_passes(module, passes, new_batch(len(batch.reward), batch.obs.dtype, 100 + other))
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


def silence(module: TD3, share: float) -> None:
    """Makes ReLUs of every hidden layer but the first silent in any batch, others in each network."""
    for network in (module.actor, module.critics):
        for layer in list(network.layers)[2:-1:2]:
            layer.bias.data[torch.rand_like(layer.bias) < share] = -100.0


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


@pytest.mark.parametrize("hidden_dims", [(WIDE, WIDE), ()], ids=str)
@pytest.mark.parametrize(("num_critics", "threads"), [(1, 1), (2, 1), (2, 2), (3, 1)], indirect=["threads"])
@pytest.mark.parametrize("halved", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("silent", [0.0, 0.7], ids=["awake", "silent"])
def test_recorded_passes_are_the_same_to_the_bit(
    hidden_dims: tuple[int, ...],
    num_critics: int,
    halved: bool,
    silent: float,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    monkeypatch.setattr("td3_lightning.fast.mlp.LARGE", WIDE * WIDE)
    monkeypatch.setattr("td3_lightning.fast.sparse_backward.AMX", False)
    for records in (False, True):
        monkeypatch.setattr("td3_lightning.fast.traced.CAN_TRACE", records)
        module = new_module(hidden_dims=hidden_dims, num_critics=num_critics)
        silence(module, silent)
        optimizers: Any = module.configure_optimizers()
        monkeypatch.setattr(module, "optimizers", lambda optimizers=optimizers: optimizers)
        logs = []
        with torch.autocast("cpu", torch.bfloat16, enabled=halved):
            for update in range(12):
                logs += module.training_step(new_batch(40, seed=update), update).values()
        rule: Any = module.update_rule
        passes: list[Any] = [rule.passes.critics, rule.passes.actor]
        assert [type(each._run).__name__ for each in passes] == ["ScriptMethod" if records else "method"] * 2
        found.append([*logs, *module.parameters()])
    assert len(found[0]) > 12 * 2 + 6
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        lambda module: setattr(module.settings, "policy_noise", Constant(0.9)),
        lambda module: setattr(module.settings, "noise_clip", Constant(0.01)),
        lambda module: module.actor.scale.mul_(0.5),
        lambda module: module.actor.centre.add_(1),
        lambda module: module.actor_target.scale.mul_(0.5),
        lambda module: module.critics.layers[0].weight.data.add_(0.1),
    ],
)
def test_a_recorded_pass_follows_what_changes(change: Callable[[TD3], Any]) -> None:
    module, batch = new_module(), new_batch()

    passes = GradientPasses(module, 7)

    def losses(run: Callable[[], tuple[Tensor, Tensor, Tensor]]) -> list[float]:
        module.noise_generator.manual_seed(3)
        critic_loss, _, actor_loss = run()
        return [critic_loss.item(), actor_loss.item()]

    def autograd() -> tuple[Tensor, Tensor, Tensor]:
        return *module.critic_loss(batch, module.draw_target_noise(batch.action)), module.actor_loss(batch)

    for _ in range(4):
        before = losses(lambda: run_passes(module, passes, batch))
    change(module)
    for _ in range(3):
        after = losses(lambda: run_passes(module, passes, batch))
        assert after != pytest.approx(before, rel=1e-4)
        assert after == pytest.approx(losses(autograd), rel=1e-5)


def test_a_batch_may_want_gradients() -> None:
    module, batch = new_module(), new_batch()
    passes = GradientPasses(module, 7)
    batch.obs.requires_grad_()
    for _ in range(4):
        assert not any(value.requires_grad for value in run_passes(module, passes, batch))
    assert batch.obs.grad is None


@pytest.mark.parametrize(
    ("threads", "num_critics", "layer_norm", "together"),
    [(1, 2, False, 1), (2, 1, False, 1), (2, 2, False, 2), (2, 3, False, 1), (2, 4, False, 4), (2, 2, True, 1)],
    indirect=["threads"],
)
def test_critics_are_together_where_every_thread_has_as_many(
    threads: int, num_critics: int, layer_norm: bool, together: int
) -> None:
    by_hand = GradientPasses(new_module(num_critics=num_critics, layer_norm=layer_norm), 7)
    assert [len(critics.layers[0].weight) for critics in by_hand.critic_networks] == [together] * (
        num_critics // together
    )
    assert len(by_hand.first_critic.layers[0].weight) == 1


@pytest.mark.parametrize("share", [0.3, 0.7, 0.9], ids=str)
@pytest.mark.parametrize(("num_critics", "threads"), [(1, 1), (2, 1), (2, 2), (3, 1)], indirect=["threads"])
def test_gradients_with_dormant_units_equal_autograd(
    share: float, num_critics: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("td3_lightning.fast.mlp.LARGE", WIDE * WIDE)
    monkeypatch.setattr("td3_lightning.fast.sparse_backward.AMX", False)
    module, batch = new_module(hidden_dims=(WIDE, WIDE + 8), num_critics=num_critics), new_batch(40)
    silence(module, share)
    ours, our_losses = gradients(module, batch, "manual")
    expected, losses = gradients(module, batch, "autograd")
    for name, gradient in expected.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-5, atol=1e-6)
    for one, other in zip(our_losses, losses, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    silent = module.critics.layers[2].bias < -99
    assert 0.7 * share < silent.float().mean() < 1.3 * share
    assert not ours["critics.layers.2.weight"][silent.expand_as(module.critics.layers[2].weight)].any()


@pytest.mark.parametrize(("amx", "most", "kind"), [(False, 0.6, SparseBackwardLinear), (True, 0.0, LinearKernel)])
def test_sparse_backward_is_chosen_where_it_is_faster(
    amx: bool, most: float, kind: type[LinearKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("td3_lightning.fast.sparse_backward.AMX", amx)
    assert max_active_fraction() == most
    zeros = [torch.zeros(2, *shape) for shape in ((400, 300), (1, 300), (300, 1), (1, 1))]
    layers = [Layer(zeros[0], zeros[1], []), Layer(zeros[2], zeros[3], [])]
    first, _ = BatchedMLP(layers, 100).kernels
    assert type(first) is kind
    assert getattr(first, "max_active", 0.0) == most


@pytest.mark.parametrize("transposed", [False, True])  # as the actor's weights are
@pytest.mark.parametrize("active", [0, 1, 16, 100, 120, 192])
def test_products_of_the_units_that_are_awake(active: int, transposed: bool) -> None:
    torch.manual_seed(1)
    weight = torch.randn(2, 192, 70).mT if transposed else torch.randn(2, 70, 192)
    inputs, slope = torch.randn(2, 11, 70), torch.zeros(2, 11, 192)
    for member, number in enumerate((active, active // 2)):  # others in each, fewer in the second
        some = torch.randperm(192)[:number]
        slope[member, member, some] = torch.randn(number)  # each in one row alone
    gradient, below = torch.full_like(weight, torch.nan), torch.full_like(inputs, torch.nan)
    sparse_linear_backward(inputs, slope, weight, slope.sum(1, keepdim=True), gradient, below, 0.6)
    torch.testing.assert_close(gradient, inputs.mT @ slope)
    torch.testing.assert_close(below, slope @ weight.mT)


@pytest.mark.parametrize(("active", "all_taken"), [(16, False), (112, False), (116, True)])
def test_weights_are_skipped_if_many_units_are_dormant(active: int, all_taken: bool) -> None:
    slope, weight, below = torch.zeros(1, 4, 192), torch.full((1, 70, 192), torch.inf), torch.zeros(1, 4, 70)
    slope[..., 192 - active :], weight[..., 192 - active :] = 1, 1
    sparse_linear_backward(torch.ones(1, 4, 70), slope, weight, slope.sum(1, keepdim=True), weight.clone(), below, 0.6)
    assert below.isnan().all() if all_taken else torch.equal(below, torch.full_like(below, active))


def test_unit_with_nan_gradient_is_not_dormant() -> None:
    slope = torch.zeros(1, 4, 192)
    slope[0, 2, 5] = torch.nan
    weight, below = torch.ones(1, 192, 192), torch.zeros(1, 4, 192)
    sparse_linear_backward(torch.ones(1, 4, 192), slope, weight, slope.sum(1, keepdim=True), weight.clone(), below, 0.6)
    assert below[0, 2].isnan().all()
    assert torch.equal(below[0, 0], torch.zeros(192))


def test_unit_with_cancelling_gradients_is_not_dormant() -> None:
    slope = torch.tensor([1.0, -1.0]).view(1, 2, 1).expand(1, 2, 192).contiguous()
    weight, below = torch.ones(1, 192, 192), torch.full((1, 2, 192), torch.nan)
    sparse_linear_backward(torch.ones(1, 2, 192), slope, weight, torch.zeros(1, 1, 192), weight.clone(), below, 0.6)
    assert torch.equal(below[0, :, 0], torch.tensor([192.0, -192.0]))


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


@pytest.mark.parametrize("halved", [False, True], ids=["float32", "bf16"])
def test_kernels_of_wide_and_large_layers_in_every_network(halved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("td3_lightning.fast.mlp.LARGE", WIDE * (WIDE + 1))
    monkeypatch.setattr("td3_lightning.fast.sparse_backward.AMX", False)
    module, wide = (
        new_module(hidden_dims=(WIDE, WIDE + 1, WIDE - 1)),
        BFloat16Linear if halved else SparseBackwardLinear,
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=halved):
        passes = GradientPasses(module, 7)
    expected = [LinearKernel, wide, LinearKernel, LinearKernel]
    for network in (passes.actor_network, passes.actor_target, *passes.critic_networks, *passes.critic_targets):
        assert [type(product) for product in network.kernels] == expected


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
    found, wanted = product.forward(inputs, product.new_outputs(7)), (inputs @ weight + bias).relu()
    assert wanted.isnan().sum() == 7
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02, equal_nan=True)


@pytest.mark.parametrize("obs_dim", [1, 2, 16])
def test_gradient_of_the_first_layer_with_few_inputs(obs_dim: int) -> None:
    torch.manual_seed(1)
    product = GradientPasses(TD3(obs_dim, LOW, HIGH, hidden_dims=(33,)), 7).actor_network.kernels[0]
    inputs, slope, written = torch.randn(1, 7, obs_dim), torch.randn(1, 7, 33), torch.full((33, obs_dim), torch.nan)
    product.forward(inputs, torch.empty_like(slope))
    product.backward(slope, Layer(written.t().unsqueeze(0), torch.empty(1, 1, 33), []), None)
    torch.testing.assert_close(written.double(), slope[0].double().t() @ inputs[0].double(), rtol=1e-5, atol=1e-5)
    below, before = torch.full_like(inputs, torch.nan), written.clone()
    product.backward(2 * slope, None, below)
    torch.testing.assert_close(below, 2 * slope @ product.weight.mT)
    assert torch.equal(written, before)


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


def test_narrow_layers_are_of_float32_under_autocast_too() -> None:
    module, batch = new_module(hidden_dims=(WIDE, WIDE - 1)), new_batch()
    exact, _ = gradients(module, batch, "manual")
    with torch.autocast("cpu", torch.bfloat16):
        ours, _ = gradients(module, batch, "manual")
    assert all(torch.equal(ours[name], gradient) for name, gradient in exact.items())


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
    "its gradient changed": lambda layers: layers[0].weight.register_hook(torch.zeros_like),
    "its gradient read": lambda layers: layers[0].bias.register_post_accumulate_grad_hook(lambda weight: None),
    "its backward pass heard": lambda layers: layers[0].register_full_backward_hook(lambda layer, below, above: None),
    "ahead of its backward pass": lambda layers: layers[0].register_full_backward_pre_hook(lambda layer, above: None),
}


# A number in a layer is looked at once.
WHEN = [(name, late) for name in CHANGES for late in (False, True) if not (late and name == "another epsilon")]


@pytest.mark.parametrize(("change", "late"), WHEN, ids=str)
def test_changed_layer_disables_manual_gradients(change: str, late: bool) -> None:
    module, batch = new_module(layer_norm=True), new_batch()
    if late:
        assert chosen(module)
        module.act(batch.obs[0].numpy())
    CHANGES[change](module.actor.layers)
    assert not chosen(module)
    expected = module.actor(batch.obs[:1]).detach().numpy()[0].clip(*module.action_box)
    np.testing.assert_allclose(module.act(batch.obs[0].numpy()), expected, rtol=0, atol=1e-6)


def test_a_frozen_layer_stays_as_it_is(make_trainer: Any) -> None:
    data = ReplayData("Pendulum-v1", steps_per_epoch=4, batch_size=4, capacity=100, eval_episodes=1)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[5])
    frozen, free = module.actor.layers[0].requires_grad_(False), module.actor.layers[2]
    before = [weight.detach().clone() for weight in (frozen.weight, free.weight)]
    make_trainer(callbacks=[Collector(warmup_steps=4)]).fit(module, datamodule=data)
    assert module.updates == 4
    assert torch.equal(frozen.weight, before[0])
    assert not torch.equal(free.weight, before[1])


def test_late_hook_disables_manual_gradients() -> None:
    module, batch = new_module(), new_batch()
    assert chosen(module)
    before = module.act(batch.obs[0].numpy())
    module.actor.register_forward_hook(lambda network, inputs, output: output - 0.01)
    assert not chosen(module)
    assert not np.array_equal(module.act(batch.obs[0].numpy()), before)


class Freeze(Callback):
    """Freezes the first layers after the first epoch."""

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        frozen = [pl_module.actor.layers[0], pl_module.critics.layers[0]]
        if trainer.current_epoch == 1:
            self.before = {layer.requires_grad_(False): layer.weight.detach().clone() for layer in frozen}


def test_a_layer_that_is_frozen_later_stays_as_it_is(make_trainer: Any) -> None:
    data = ReplayData("Pendulum-v1", steps_per_epoch=4, batch_size=4, capacity=100, eval_episodes=1)
    module, freeze = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[5]), Freeze()
    make_trainer(callbacks=[Collector(warmup_steps=4), freeze], max_epochs=2).fit(module, datamodule=data)
    assert module.updates == 8
    assert len(freeze.before) == 2
    assert all(torch.equal(layer.weight, before) for layer, before in freeze.before.items())


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
        elif self.changed == "a compiled container":
            actor.layers = torch.compile(actor.layers)  # type: ignore[assignment]
        else:
            critics = Critics(8, 3, (33, 17), encoder=nn.Sequential(nn.Linear(4, 8), nn.Tanh()))
        return actor, critics


NETWORKS = [
    *("no ReLU", "a ReLU at the end", "layer norm", "an encoder of the actor", "an encoder of the critics"),
    *("a layer beside the others", "a weight beside the layers", "a layer that is used twice"),
    *("another container", "a compiled container"),
]


@pytest.mark.parametrize("changed", NETWORKS)
def test_other_networks_of_a_subclass_use_autograd(changed: str) -> None:
    assert not chosen(type("Other", (Rebuilt,), {"changed": changed})(4, LOW, HIGH, hidden_dims=(33, 17)))


@pytest.mark.parametrize("name", ["actor", "actor.layers", "actor_target.layers.0", "critics", "critics.layers.2"])
def test_replaced_forward_uses_autograd(name: str) -> None:
    module = new_module()
    assert chosen(module)
    part = module.get_submodule(name)
    part.forward = part.forward  # type: ignore[method-assign]
    assert not chosen(module)


def test_anomaly_detection_uses_autograd() -> None:
    with torch.autograd.set_detect_anomaly(True):
        assert not chosen(new_module())


@pytest.mark.parametrize("name", ["actor.layers", "actor_target", "actor_target.layers.0", "critics_target.layers.2"])
def test_hook_in_any_network_uses_autograd(name: str) -> None:
    module = new_module()
    module.get_submodule(name).register_forward_hook(lambda layer, inputs, output: 2 * output)
    assert not chosen(module)


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


def test_an_agent_that_has_acted_is_copied_and_pickled() -> None:
    module, obs = new_module(), new_batch().obs[0].numpy()
    action = module.act(obs)
    assert chosen(module)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        np.testing.assert_array_equal(other.act(obs), action)
        nn.init.zeros_(other.actor.layers[-1].weight)
        assert not np.array_equal(other.act(obs), action)
    np.testing.assert_array_equal(module.act(obs), action)


def chosen(module: TD3) -> bool:
    """Whether the module would use the manual update in the next epoch."""
    return module.settings.gradients == "manual" and supports(module)


def new_rule(module: TD3, previous: object = None) -> ManualUpdate:
    """Make the rule of a module without a Trainer."""
    if not hasattr(module, "made_optimizers"):
        module.made_optimizers = module.configure_optimizers()  # type: ignore[assignment]
        module.optimizers = lambda: module.made_optimizers  # type: ignore[method-assign,assignment]
    rule = make_rule(module, previous)
    assert rule is not None
    return rule


def test_several_processes_use_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(new_module())
    monkeypatch.setattr("td3_lightning.fast.manual_update.world_size", lambda: 2)
    assert not chosen(new_module())


def test_plain_networks_use_manual_gradients_by_default() -> None:
    assert chosen(new_module())
    assert chosen(new_module(layer_norm=True))
    module = new_module(gradients="autograd")
    assert supports(module)  # only the setting decides
    assert not isinstance(find_update_rule(module, module.settings.gradients, None), ManualUpdate)


def test_autograd_works_where_hands_do_not() -> None:
    class Penalised(TD3):
        def actor_loss(self, batch: Batch) -> Tensor:
            return super().actor_loss(batch) + 1

    class Unsmoothed(TD3):
        def smooth_target_action(self, action: Tensor, noise: Tensor) -> Tensor:
            return action

    patched: Any = new_module()
    patched.smooth_target_action = lambda action, noise: action
    assert not chosen(patched)
    assert not chosen(new_module(bc_weight=0.4))
    assert not chosen(Penalised(4, LOW, HIGH))
    assert not chosen(Unsmoothed(4, LOW, HIGH))
    of_another_kind = new_module()
    of_another_kind.actor = nn.Linear(4, 3)
    assert not chosen(of_another_kind)
    with torch.autocast("cpu", torch.float16):
        assert not chosen(new_module())


@pytest.mark.parametrize("method", ["compute_gradients", "step_optimizer", "manual_backward", "backward"])
def test_override_of_the_gradient_step_uses_autograd(method: str) -> None:
    module: Any = new_module()
    module.trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert chosen(module)
    setattr(module, method, partial(getattr(module, method)))
    assert not chosen(module)


def test_agent_may_have_another_optimizer(make_trainer: Any) -> None:
    class Curious(TD3):
        def configure_optimizers(self) -> Any:
            return *super().configure_optimizers(), torch.optim.Adam(self.actor.parameters())

    data = ReplayData("Pendulum-v1", steps_per_epoch=4, batch_size=4, capacity=100, eval_episodes=1)
    module = Curious(data.obs_dim, data.action_low, data.action_high, hidden_dims=[5])
    make_trainer(callbacks=[Collector(warmup_steps=4)]).fit(module, datamodule=data)
    assert isinstance(module.update_rule, ManualUpdate)


def test_a_rule_is_valid_for_its_networks_and_precision_only() -> None:
    module = new_module()
    rule = new_rule(module)
    assert new_rule(module, rule) is rule
    with torch.autocast("cpu", torch.bfloat16):
        assert new_rule(module, rule) is not rule
    rule.update_critics(new_batch())
    buffers = rule.passes
    rule.update_critics(new_batch(seed=5))
    assert rule.passes is buffers
    rule.update_critics(new_batch(9))
    assert rule.passes is not buffers
    next(module.critics_target.parameters()).data = torch.zeros(2, 7, 33)
    other = new_rule(module, rule)
    assert other is not rule
    other.update_critics(new_batch())
    assert other.passes is not None
    assert other.passes.critic_targets[1].layers[0].weight.abs().max() == 0
    module.made_optimizers = module.configure_optimizers()  # type: ignore[assignment]
    assert new_rule(module, other) is not other


def test_reduced_matmul_precision_uses_autograd() -> None:
    module = new_module()
    assert supports(module)
    torch.set_float32_matmul_precision("medium")
    assert not supports(module)


def test_the_rule_is_chosen_once_per_epoch(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("td3_lightning.fast.manual_update.supports", lambda module: asked.append(module) or True)
    data = ReplayData("Pendulum-v1", steps_per_epoch=6, batch_size=4, capacity=100, eval_episodes=1)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[5])
    rules: list[Any] = []
    look = LambdaCallback(on_train_batch_end=lambda *_: rules.append(module.update_rule))
    make_trainer(callbacks=[Collector(warmup_steps=4), look], max_epochs=3).fit(module, datamodule=data)
    assert len(asked) == 3
    assert len(rules) == 18
    assert len(set(map(id, rules))) == 1

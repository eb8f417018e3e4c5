"""TD7 against its paper (Fujimoto et al., 2023): in numpy, and against a plain loop in torch.

Nothing of the package computes what is expected here. The first half is numpy in float64, where complex steps give the
exact derivatives. The second half is torch.nn, torch.optim.Adam and a Python loop.
"""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from td3_lightning import TD7, Batch
from td3_lightning.algorithm import sale
from tests.algorithm.test_paper import Given

LOW, HIGH = [-0.5, 1.0], [2.0, 4.0]  # half-widths 1.25 and 1.5, centres 0.75 and 2.5
ZS_DIM, WIDTHS, OBS_DIM, BATCH_SIZE = 3, (4, 3), 2, 5
LR = {"actor_lr": 0.01, "critic_lr": 0.02, "encoder_lr": 0.03}
POLICY_NOISE, NOISE_CLIP = 0.3, 0.25

Net = list[Any]  # [weight, bias, weight, bias, ...], weights (in, out)

# First half: numpy.


def absolute(x: Any) -> Any:
    return x * np.sign(x.real)


def norm(x: Any) -> Any:
    return x / absolute(x).mean(axis=-1, keepdims=True)


def elu(x: Any) -> Any:
    return np.where(x.real > 0, x, np.exp(np.where(x.real > 0, 0, x)) - 1)


def relu(x: Any) -> Any:
    return np.where(x.real > 0, x, 0)


def run(net: Net, x: Any, activation: Callable[[Any], Any]) -> Any:
    for layer in range(0, len(net), 2):
        x = x @ net[layer] + net[layer + 1]
        x = activation(x) if layer < len(net) - 2 else x
    return x


def join(*parts: Any) -> Any:
    return np.concatenate(parts, axis=1)


def gradient(net: Net, loss: Callable[[], Any]) -> Net:
    """Complex-step derivatives of a loss that reads the arrays of the net."""
    grads = [np.zeros(array.shape) for array in net]
    for at, array in enumerate(net):
        net[at] = array.astype(complex)
        for index in np.ndindex(array.shape):
            net[at][index] += 1e-30j
            grads[at][index] = loss().imag / 1e-30
            net[at][index] = array[index]
        net[at] = array
    return grads


class Adam:
    def __init__(self, net: Net, lr: float) -> None:
        self.net, self.lr, self.time = net, lr, 0
        self.m, self.v = [0.0 * p for p in net], [0.0 * p for p in net]

    def step(self, grads: Net) -> None:
        self.time += 1
        for i, grad in enumerate(grads):
            self.m[i] = 0.9 * self.m[i] + 0.1 * grad
            self.v[i] = 0.999 * self.v[i] + 0.001 * grad**2
            m, v = self.m[i] / (1 - 0.9**self.time), self.v[i] / (1 - 0.999**self.time)
            self.net[i] = self.net[i] - self.lr * m / (np.sqrt(v) + 1e-8)


def pairs(modules: nn.Module) -> Net:
    """The weights of linear layers, as (in, out), and their biases."""
    linear = [module for module in modules.modules() if isinstance(module, nn.Linear)]
    arrays = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in linear]
    return [array.copy() for pair in arrays for array in pair]


def critic_net(critics: Any, member: int) -> Net:
    """One critic with the order of the paper's concatenation: features, z_sa, z_s."""
    state = {name: value[member].numpy() for name, value in critics.state_dict().items()}
    mix = np.concatenate([state["mix.weight"], state["mix.shared_weight"]])
    rest = [state[f"layers.{layer}.{name}"] for layer in (1, 3) for name in ("weight", "bias")]
    arrays = [state["features.weight"], state["features.bias"], mix, state["mix.bias"], *rest]
    return [array[0].copy() if len(array) == 1 and index % 2 else array.copy() for index, array in enumerate(arrays)]


class InNumpy:
    """TD7. Each encoder is one net: the state encoder's 6 arrays, then the state-action encoder's."""

    def __init__(
        self,
        module: TD7,
        bc_weight: float | None = None,
        tau: float = 1.0,
        num_critics: int = 2,
        critic_loss: str = "huber",
    ) -> None:
        self.bc_weight, self.tau, self.loss = bc_weight, tau, critic_loss
        self.encoder, self.fixed, self.fixed_target = (
            pairs(each) for each in (module.encoder, module.fixed_encoder, module.fixed_encoder_target)
        )
        self.actor, self.actor_target = pairs(module.actor), pairs(module.actor_target)
        self.critics, self.critics_target = (
            [critic_net(each, member) for member in range(num_critics)]
            for each in (module.critics, module.critics_target)
        )
        value_range = module.value_range
        self.clip = [float(value_range.low), float(value_range.high)]
        self.seen = [float(value_range.seen_low), float(value_range.seen_high)]
        self.adams = [Adam(self.encoder, LR["encoder_lr"]), Adam(self.actor, LR["actor_lr"])]
        self.critic_adams = [Adam(critic, LR["critic_lr"]) for critic in self.critics]
        self.updates = 0

    @staticmethod
    def z_s(encoder: Net, obs: Any) -> Any:
        return norm(run(encoder[:6], obs, elu))

    @staticmethod
    def z_sa(encoder: Net, z_s: Any, action: Any) -> Any:
        return run(encoder[6:], join(z_s, action), elu)

    @staticmethod
    def policy(actor: Net, obs: Any, z_s: Any) -> Any:
        features = norm(obs @ actor[0] + actor[1])
        return np.tanh(run(actor[2:], join(features, z_s), relu))

    def q(self, critic: Net, encoder: Net, obs: Any, action: Any) -> Any:
        z_s = self.z_s(encoder, obs)
        features = norm(join(obs, action) @ critic[0] + critic[1])
        return run(critic[2:], join(features, self.z_sa(encoder, z_s, action), z_s), elu)[:, 0]

    def encoder_loss(self, batch: Any, action: Any, next_z_s: Any) -> Any:
        return ((self.z_sa(self.encoder, self.z_s(self.encoder, batch.obs), action) - next_z_s) ** 2).mean()

    def target(self, batch: Any, noise: Any) -> Any:
        smoothing = np.clip(noise * POLICY_NOISE, -NOISE_CLIP, NOISE_CLIP)
        action = self.policy(self.actor_target, batch.next_obs, self.z_s(self.fixed_target, batch.next_obs))
        action = np.clip(action + smoothing, -1, 1)
        values = [self.q(critic, self.fixed_target, batch.next_obs, action) for critic in self.critics_target]
        return batch.reward + batch.discount * np.clip(np.min(values, axis=0), *self.clip)

    def critic_loss(self, critic: Net, batch: Any, action: Any, target: Any) -> Any:
        error = absolute(self.q(critic, self.fixed, batch.obs, action) - target)
        if self.loss == "mse":
            return (error**2).mean()
        return np.where(error.real < 1, 0.5 * error**2, error - 0.5).mean()

    def actor_loss(self, batch: Any) -> Any:
        action = self.policy(self.actor, batch.obs, self.z_s(self.fixed, batch.obs))
        values = np.stack([self.q(critic, self.fixed, batch.obs, action) for critic in self.critics])
        if self.bc_weight is None:
            return -values.mean()
        deviation = action - (batch.action - [0.75, 2.5]) / [1.25, 1.5]
        return self.bc_weight * np.abs(values.real).mean() * (deviation**2).mean() - values.mean()

    def update(self, batch: Any, noise: Any, policy_freq: int, target_update_freq: int) -> dict[str, float]:
        self.updates += 1
        action = (batch.action - [0.75, 2.5]) / [1.25, 1.5]
        next_z_s = self.z_s(self.encoder, batch.next_obs)
        logs = {"encoder_loss": self.encoder_loss(batch, action, next_z_s)}
        self.adams[0].step(gradient(self.encoder, lambda: self.encoder_loss(batch, action, next_z_s)))
        target = self.target(batch, noise)
        self.seen = [min(self.seen[0], target.min()), max(self.seen[1], target.max())]
        logs["critic_loss"] = sum(self.critic_loss(critic, batch, action, target) for critic in self.critics)
        for critic, adam in zip(self.critics, self.critic_adams, strict=True):
            adam.step(gradient(critic, lambda net=critic: self.critic_loss(net, batch, action, target)))
        if self.updates % policy_freq == 0:
            logs["actor_loss"] = self.actor_loss(batch)
            self.adams[1].step(gradient(self.actor, lambda: self.actor_loss(batch)))
        if self.updates % target_update_freq == 0:
            self.actor_target = self.average(self.actor_target, self.actor)
            pairs = zip(self.critics_target, self.critics, strict=True)
            self.critics_target = [self.average(target, online) for target, online in pairs]
            self.fixed_target, self.fixed, self.clip = list(self.fixed), list(self.encoder), list(self.seen)
        return logs

    def average(self, target: Net, online: Net) -> Net:
        return [(1 - self.tau) * old + self.tau * new for old, new in zip(target, online, strict=True)]

    def arrays(self) -> Net:
        nets = [self.encoder, self.fixed, self.fixed_target, self.actor, self.actor_target]
        return [*itertools.chain(*nets, *self.critics, *self.critics_target), np.array(self.clip + self.seen)]


def new_module(dtype: torch.dtype = torch.float64, **kwargs: Any) -> TD7:
    """A module whose targets and fixed encoders differ from the online networks, as between two target updates."""
    torch.manual_seed(5)
    settings = {"hidden_dims": WIDTHS, "zs_dim": ZS_DIM, "policy_noise": POLICY_NOISE, "noise_clip": NOISE_CLIP, **LR}
    module = TD7(OBS_DIM, LOW, HIGH, **(settings | kwargs)).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-1, 1)
    ends = {"low": -0.3, "high": 0.4, "seen_low": -0.35, "seen_high": 0.2}
    module.value_range.load_state_dict({name: torch.tensor(value, dtype=dtype) for name, value in ends.items()})
    return module


def new_batch(seed: int = 0, size: int = BATCH_SIZE) -> Any:
    """A batch in numpy. TD errors are on both sides of 1, and one transition terminated."""
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.normal(size=(2, size, OBS_DIM))
    action = rng.uniform(LOW, HIGH, (size, 2))
    discount = np.where(np.arange(size) == 2, 0.0, 0.99)
    return Batch(obs, action, rng.normal(0, 1.2, size), discount, next_obs)


def in_torch(batch: Any, dtype: torch.dtype = torch.float64) -> Batch:
    return Batch(*(torch.tensor(part, dtype=dtype) for part in batch))


class Plain(TD7):
    """TD7 without a Trainer."""

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        if "plain" not in vars(self):
            self.plain = self.configure_optimizers()
        return self.plain

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        loss.backward(*args, **kwargs)


def noises(module: TD7, updates: int, size: int = BATCH_SIZE) -> list[Tensor]:
    """What the module will draw: standard normal float32 numbers (batch, action_dim) for each update."""
    generator = torch.Generator()
    generator.set_state(module.noise_generator.get_state())
    return [torch.randn((size, 2), generator=generator) for _ in range(updates)]


def plain(module: TD7) -> Plain:
    module.__class__ = Plain
    return module  # type: ignore[return-value]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=str)
@pytest.mark.parametrize(
    "settings",
    [{}, {"bc_weight": 0.1}, {"tau": 0.3}, {"num_critics": 1}, {"num_critics": 5}, {"critic_loss": "mse"}],
    ids=str,
)
def test_one_update_in_numpy(settings: dict[str, Any], dtype: torch.dtype, close: float) -> None:
    """Every weight after an update with all its parts, and the losses before it."""
    module = plain(new_module(dtype, policy_freq=1, target_update_freq=1, **settings))
    batch, hand = new_batch(), InNumpy(module.double(), **settings)
    (noise,) = noises(module, 1)
    expected = hand.update(batch, noise.double().numpy(), 1, 1)
    logs = module.to(dtype).training_step(in_torch(batch, dtype), 0)
    for name, value in expected.items():
        np.testing.assert_allclose(logs[name].item(), value, rtol=0, atol=close, err_msg=name)
    found = InNumpy(module.double(), **settings)
    for ours, array in zip(found.arrays(), hand.arrays(), strict=True):
        np.testing.assert_allclose(ours, array, rtol=0, atol=close)


def test_nine_updates_in_numpy() -> None:
    """The times of the actor's update and of the replacements, Adam's moments, and the clipped range."""
    module = plain(new_module(policy_freq=2, target_update_freq=3))
    hand, clipped = InNumpy(module), []
    for update, noise in enumerate(noises(module, 9)):
        batch = new_batch(update)
        hand.update(batch, noise.double().numpy(), 2, 3)
        module.training_step(in_torch(batch), update)
        clipped.append(hand.clip)
        for ours, array in zip(InNumpy(module).arrays(), hand.arrays(), strict=True):
            np.testing.assert_allclose(ours, array, rtol=0, atol=1e-10, err_msg=f"update {update}")
    assert [one == other for one, other in itertools.pairwise(clipped)] == [
        True,
        False,
        True,
        True,
        False,
        True,
        True,
        False,
    ]


def test_under_the_trainer_the_update_is_the_same() -> None:
    """Lightning's optimizers, and the loader that converts nothing."""
    batches = [in_torch(new_batch(seed)) for seed in range(6)]
    module, other = new_module(target_update_freq=3), plain(new_module(target_update_freq=3))
    other.noise_generator.set_state(module.noise_generator.get_state())
    settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    L.Trainer(accelerator="cpu", max_epochs=1, enable_model_summary=False, **settings).fit(module, Given(batches))
    for number, batch in enumerate(batches):
        other.training_step(batch, number)
    for (name, value), expected in zip(module.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(value, expected), name


# Second half: a plain loop.


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.s1, self.s2, self.s3 = nn.Linear(OBS_DIM, 4), nn.Linear(4, 3), nn.Linear(3, ZS_DIM)
        self.a1, self.a2, self.a3 = nn.Linear(ZS_DIM + 2, 4), nn.Linear(4, 3), nn.Linear(3, ZS_DIM)

    def zs(self, obs: Tensor) -> Tensor:
        z = self.s3(F.elu(self.s2(F.elu(self.s1(obs)))))
        return z / z.abs().mean(dim=1, keepdim=True)

    def zsa(self, zs: Tensor, action: Tensor) -> Tensor:
        return self.a3(F.elu(self.a2(F.elu(self.a1(torch.cat([zs, action], dim=1))))))


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l0, self.l1, self.l2, self.l3 = nn.Linear(2, 4), nn.Linear(4 + ZS_DIM, 4), nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, obs: Tensor, zs: Tensor) -> Tensor:
        a = self.l0(obs)
        a = torch.cat([a / a.abs().mean(dim=1, keepdim=True), zs], dim=1)
        return torch.tanh(self.l3(F.relu(self.l2(F.relu(self.l1(a))))))


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l0, self.l1 = nn.Linear(4, 4), nn.Linear(4 + 2 * ZS_DIM, 4)
        self.l2, self.l3 = nn.Linear(4, 3), nn.Linear(3, 1)

    def forward(self, obs: Tensor, action: Tensor, zsa: Tensor, zs: Tensor) -> Tensor:
        q = self.l0(torch.cat([obs, action], dim=1))
        q = torch.cat([q / q.abs().mean(dim=1, keepdim=True), zsa, zs], dim=1)
        return self.l3(F.elu(self.l2(F.elu(self.l1(q)))))


class Loop:
    """TD7 in a plain loop. All settings are written where they are used."""

    def __init__(self, module: TD7, bc_weight: float | None = None) -> None:
        self.bc_weight = bc_weight
        self.encoder, self.actor = Encoder().double(), Actor().double()
        self.critics = nn.ModuleList([Critic(), Critic()]).double()
        self.load(self.encoder, pairs(module.encoder))
        self.load(self.actor, pairs(module.actor))
        for member, critic in enumerate(self.critics):
            self.load(critic, critic_net(module.critics, member))
        self.fixed, self.fixed_target, self.actor_target, self.critics_target = map(
            copy.deepcopy, (self.encoder, self.encoder, self.actor, self.critics)
        )
        self.adams = [torch.optim.Adam(net.parameters(), lr=3e-3) for net in (self.encoder, self.critics, self.actor)]
        self.least, self.most, self.clip = float("inf"), float("-inf"), (0.0, 0.0)
        self.updates = 0

    @staticmethod
    def load(net: nn.Module, arrays: Net) -> None:
        for parameter, array in zip(net.parameters(), arrays, strict=True):
            parameter.data = torch.tensor(array.T.copy())

    def step(self, adam: torch.optim.Optimizer, loss: Tensor) -> None:
        adam.zero_grad()
        loss.backward()
        adam.step()

    def update(self, batch: Batch, noise: Tensor) -> None:
        self.updates += 1
        action = (batch.action - torch.tensor([0.75, 2.5])) / torch.tensor([1.25, 1.5])
        with torch.no_grad():
            next_zs = self.encoder.zs(batch.next_obs)
        prediction = self.encoder.zsa(self.encoder.zs(batch.obs), action)
        self.step(self.adams[0], F.mse_loss(prediction, next_zs))
        with torch.no_grad():
            zs = self.fixed_target.zs(batch.next_obs)
            next_action = self.actor_target(batch.next_obs, zs) + (0.2 * noise).clamp(-0.5, 0.5)
            next_action = next_action.clamp(-1, 1)
            zsa = self.fixed_target.zsa(zs, next_action)
            q1, q2 = (critic(batch.next_obs, next_action, zsa, zs)[:, 0] for critic in self.critics_target)
            target = batch.reward + batch.discount * torch.minimum(q1, q2).clamp(*self.clip)
            self.least, self.most = min(self.least, float(target.min())), max(self.most, float(target.max()))
            zs = self.fixed.zs(batch.obs)
            zsa = self.fixed.zsa(zs, action)
        errors = [(critic(batch.obs, action, zsa, zs)[:, 0] - target).abs() for critic in self.critics]
        self.step(self.adams[1], sum(F.huber_loss(error, 0 * error) for error in errors))
        if self.updates % 2 == 0:
            ours = self.actor(batch.obs, zs)
            zsa = self.fixed.zsa(zs, ours)
            self.step(self.adams[2], -torch.cat([critic(batch.obs, ours, zsa, zs) for critic in self.critics]).mean())
        if self.updates % 70 == 0:
            self.actor_target.load_state_dict(self.actor.state_dict())
            self.critics_target.load_state_dict(self.critics.state_dict())
            self.fixed_target.load_state_dict(self.fixed.state_dict())
            self.fixed.load_state_dict(self.encoder.state_dict())
            self.clip = self.least, self.most


def test_many_updates_are_those_of_a_plain_loop() -> None:
    torch.manual_seed(3)
    rates = dict.fromkeys(LR, 3e-3)
    module = plain(TD7(OBS_DIM, LOW, HIGH, hidden_dims=WIDTHS, zs_dim=ZS_DIM, target_update_freq=70, **rates).double())
    loop, first = Loop(module), copy.deepcopy(module.state_dict())
    for update, noise in enumerate(noises(module, 300, size=16)):
        batch = in_torch(new_batch(update % 100, size=16))
        loop.update(batch, noise.double())
        module.training_step(batch, update)
    assert (module.value_range.low.item(), module.value_range.high.item()) == pytest.approx(loop.clip, abs=1e-8)
    networks = {
        "encoder": (loop.encoder, pairs(module.encoder)),
        "fixed_encoder": (loop.fixed, pairs(module.fixed_encoder)),
        "fixed_encoder_target": (loop.fixed_target, pairs(module.fixed_encoder_target)),
        "actor": (loop.actor, pairs(module.actor)),
        "actor_target": (loop.actor_target, pairs(module.actor_target)),
    }
    for member in range(2):
        networks[f"critic {member}"] = loop.critics[member], critic_net(module.critics, member)
        networks[f"critic target {member}"] = loop.critics_target[member], critic_net(module.critics_target, member)
    for name, (net, arrays) in networks.items():
        for parameter, array in zip(net.parameters(), arrays, strict=True):
            np.testing.assert_allclose(array.T, parameter.detach().numpy(), rtol=0, atol=1e-8, err_msg=name)
    moved = [name for name, value in module.state_dict().items() if not torch.equal(value, first[name])]
    assert len(moved) == len(first) - 4  # all but the boxes of the actions


# Traps.


def test_the_fixed_encoders_are_one_and_two_periods_old() -> None:
    module = plain(TD7(OBS_DIM, LOW, HIGH, hidden_dims=WIDTHS, zs_dim=ZS_DIM, target_update_freq=3))
    snapshots = [copy.deepcopy(module.encoder.state_dict())] * 2  # at updates -3 and 0
    for update in range(1, 13):
        module.training_step(in_torch(new_batch(update), torch.float32), update)
        if update % 3 == 0:
            snapshots.append(copy.deepcopy(module.encoder.state_dict()))
        for fixed, age in ((module.fixed_encoder, 1), (module.fixed_encoder_target, 2)):
            for name, value in fixed.state_dict().items():
                assert torch.equal(value, snapshots[-age][name]), (update, age, name)
    assert not torch.equal(snapshots[-1]["state.0.weight"], snapshots[-2]["state.0.weight"])


def test_the_policy_is_the_actor_and_the_fixed_encoder() -> None:
    module, obs = new_module(), new_batch().obs
    before = module.act(obs)
    policy = {id(parameter) for each in module.policy_modules() for parameter in each.parameters()}
    for parameter in module.parameters():
        if id(parameter) not in policy:
            parameter.data.zero_()
    np.testing.assert_array_equal(module.act(obs), before)


def test_value_range_is_that_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sale, "stack_over_ranks", lambda value: torch.stack([value, torch.tensor([-3.0, 3.0])]))
    value_range = sale.ValueRange()
    value_range.observe(torch.tensor([-1.0, 2.0]))
    value_range.update()
    assert (value_range.low, value_range.high) == (-3.0, 3.0)

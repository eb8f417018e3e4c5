"""Fast Adam steps against `optimizer.step()`, and the optimizers that are supported."""

import copy
from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, Collector, ReplayData
from td3_lightning.fast.adam import FastAdam, supports_fast_step

SHAPES = [(2, 5, 7), (2, 1, 7), (3,), ()]


def new_adam(kind: type[torch.optim.Optimizer] = torch.optim.Adam, **kwargs: Any) -> Any:
    """With two groups of weights, which have gradients."""
    torch.manual_seed(1)
    weights = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    groups = [{"params": weights[:2]}, {"params": weights[2:], "lr": 0.3}]
    return kind(groups, **{"lr": 1e-3, "fused": True, **kwargs})


def held(adam: torch.optim.Optimizer) -> list[Tensor]:
    """A copy of all that a step changes."""
    weights = [weight for group in adam.param_groups for weight in group["params"]]
    memories = [memory for weight in weights for memory in adam.state[weight].values()]
    return [each.detach().clone() for each in (*weights, *memories)]


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def supports(adam: Any) -> bool:
    """Whether a module without a Trainer would step this optimizer directly."""
    return supports_fast_step(TD3(3, [-1.0], [1.0], hidden_dims=(4,)), adam)


def test_state_that_a_user_replaces_is_used() -> None:
    """For example a callback that starts Adam again. The epoch is not over."""
    usual, direct, other = new_adam(), new_adam(), new_adam()
    fast = FastAdam(direct)
    other.step()
    for step in range(9):
        for adam in (usual, direct):
            if step == 3:
                adam.state.clear()
            if step == 6:
                adam.load_state_dict(copy.deepcopy(other.state_dict()))
        usual.step()
        fast.step()
        assert same(held(usual), held(direct)), step


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1}, {"betas": (0.5, 0.8), "eps": 0.1}], ids=str)
def test_steps_are_adams_to_the_bit(settings: dict[str, Any]) -> None:
    usual, direct = new_adam(**settings), new_adam(**settings)
    assert supports(direct)
    fast = FastAdam(direct)
    for step in range(20):
        before = held(direct) if step else []
        for adam in (usual, direct):
            generator = torch.Generator().manual_seed(step)
            for group in adam.param_groups:
                group["lr"] *= 0.9
                for weight in group["params"]:
                    weight.grad = torch.randn(weight.shape, generator=generator)
        usual.step()
        fast.step()
        assert bool(fast.groups) == (step > 0), "the first step creates Adam's state"
        assert not any(torch.equal(one, other) for one, other in zip(before, held(direct), strict=False))
        assert same(held(usual), held(direct))
        if step == 10:  # another state, as a checkpoint brings it: the next epoch looks it up again
            direct.load_state_dict(copy.deepcopy(direct.state_dict()))
            fast = FastAdam(direct)


class Careful(torch.optim.Adam):
    """Might step in another way."""


def with_a_scheduler(adam: Any) -> None:
    torch.optim.lr_scheduler.StepLR(adam, 1)  # counts the calls of `step`


@pytest.mark.parametrize(
    ("made", "change"),
    [
        ({"amsgrad": True}, None),
        ({"maximize": True}, None),
        ({"fused": False}, None),
        ({"capturable": True}, None),
        ({"kind": Careful}, None),
        ({"kind": torch.optim.AdamW}, None),
        ({"kind": torch.optim.SGD}, None),
        ({}, lambda adam: adam.param_groups[0].update(decoupled_weight_decay=True)),
        ({}, with_a_scheduler),
        ({}, lambda adam: adam.register_step_pre_hook(lambda *_: None)),
        ({}, lambda adam: adam.register_step_post_hook(lambda *_: None)),
    ],
)
def test_what_is_not_plain_adam_is_left_alone(made: dict[str, Any], change: Callable[[Any], Any] | None) -> None:
    plain, other = new_adam(), new_adam(**made)
    for adam in (plain, other):
        adam.step()
    if change is not None:
        change(other)
    assert supports(plain)
    assert not supports(other)


def fit(trainer: L.Trainer, module: type[TD3] = TD3) -> TD3:
    data = ReplayData("toys/Seeded-v0", steps_per_epoch=30, batch_size=8, eval_episodes=1)
    agent = module(data.obs_dim, data.action_low, data.action_high, hidden_dims=(6,))
    trainer.fit(agent, datamodule=data)
    return agent


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_a_run_is_the_same_and_lightning_counts_its_steps(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    runs, direct = [], []
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr("td3_lightning.fast.manual_update.supports_fast_step", lambda *_: False)
        L.seed_everything(3, verbose=False)
        trainer = make_trainer(callbacks=[Collector(warmup_steps=10)], precision=precision)
        agent = fit(trainer)
        assert agent.updates == 30
        assert trainer.global_step == 30 + 15
        rule: Any = agent.update_rule
        direct.append(
            [
                hasattr(step, "__self__") and type(step.__self__) is FastAdam
                for step in (rule.actor_step, rule.critic_step)
            ]
        )
        runs.append([weight.detach() for weight in agent.parameters()] + [held(adam) for adam in trainer.optimizers])
    assert direct == [[True, True], [False, False]]
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else same(one, other)


class Listener(Callback):
    def __init__(self) -> None:
        self.heard = 0

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.heard += 1


def test_a_callback_is_told_of_every_step(make_trainer: Any) -> None:
    listener = Listener()
    fit(make_trainer(callbacks=[Collector(warmup_steps=10), listener]))
    assert listener.heard == 30 + 15

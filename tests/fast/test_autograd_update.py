"""The fast autograd update against the module's own, and when it is used."""

from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback
from lightning.pytorch.profilers import SimpleProfiler
from torch import Tensor

from td3_lightning import TD3, TD7, Collector, ReplayData
from td3_lightning.fast.autograd_update import AutogradUpdate, make_rule


def fit(make_trainer: Any, agent_class: type[TD3] = TD3, callbacks: list[Callback] = [], **kwargs: Any) -> TD3:  # noqa: B006
    options = {name: kwargs.pop(name) for name in ("precision", "profiler") if name in kwargs}
    L.seed_everything(3, verbose=False)
    data = ReplayData("Pendulum-v1", steps_per_epoch=15, batch_size=4, capacity=100, eval_episodes=1)
    module = agent_class(data.obs_dim, data.action_low, data.action_high, hidden_dims=[5, 7], **kwargs)
    trainer = make_trainer(callbacks=[Collector(warmup_steps=10), *callbacks], max_epochs=2, **options)
    trainer.fit(module, datamodule=data)
    assert module.updates == 30
    return module


@pytest.fixture(autouse=True)
def without_manual_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("td3_lightning.fast.manual_update.supports", lambda module: False)


def state(module: TD3) -> list[Tensor]:
    adams = module.trainer.optimizers
    return [
        *(weight.detach() for weight in module.parameters()),
        *(value for adam in adams for entry in adam.state.values() for value in entry.values()),
    ]


@pytest.mark.parametrize(
    ("agent_class", "settings"),
    [
        (TD3, {}),
        (TD3, {"layer_norm": True, "precision": "bf16-mixed"}),
        (TD3, {"max_grad_norm": 0.1, "precision": "64-true"}),
        (TD3, {"bc_weight": 0.4}),
        (TD7, {}),
    ],
    ids=["plain", "bf16", "clipped", "manual_unsupported", "td7"],
)
def test_updates_are_those_of_the_module_bit_for_bit(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch, agent_class: type[TD3], settings: dict[str, Any]
) -> None:
    fast = fit(make_trainer, agent_class, **settings)
    assert type(fast.update_rule) is AutogradUpdate
    monkeypatch.setattr("td3_lightning.fast.autograd_update.supports", lambda module: False)
    usual = fit(make_trainer, agent_class, **settings)
    assert usual.update_rule is usual
    assert fast.trainer.global_step == usual.trainer.global_step
    for one, other in zip(state(fast), state(usual), strict=True):
        assert torch.equal(one, other)


class ScaledGradients(TD3):
    """Override how gradients are computed."""

    def compute_gradients(self, loss: Tensor, network: torch.nn.Module) -> None:
        super().compute_gradients(2 * loss, network)


@pytest.mark.parametrize(
    ("agent_class", "options"),
    [
        (ScaledGradients, {}),
        (TD3, {"callbacks": [LambdaCallback(on_after_backward=lambda *_: None)]}),
        (TD3, {"profiler": SimpleProfiler()}),
    ],
    ids=["override", "hook", "profiler"],
)
def test_module_updates_itself_where_something_hooks_in(
    make_trainer: Any, agent_class: type[TD3], options: dict[str, Any]
) -> None:
    module = fit(make_trainer, agent_class, **options)
    assert module.update_rule is module


def test_step_hook_is_called_and_frozen_weights_stay(make_trainer: Any) -> None:
    gradients: list[Tensor | None] = []
    frozen: list[Tensor] = []

    def bias_of(agent: Any) -> Tensor:
        return agent.critics.layers[0].bias

    def freeze(trainer: L.Trainer, agent: Any, stage: str) -> None:
        frozen.append(bias_of(agent).requires_grad_(False).clone())

    module = fit(
        make_trainer,
        callbacks=[
            LambdaCallback(
                setup=freeze,
                on_before_optimizer_step=lambda trainer, agent, optimizer: gradients.append(bias_of(agent).grad),
            )
        ],
    )
    assert type(module.update_rule) is AutogradUpdate
    assert gradients == (30 + 15) * [None]
    assert torch.equal(bias_of(module), frozen[0])


def test_weight_without_gradient_is_left_to_adam(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gradient: list[list[str]] = []  # the critics' weights with a gradient after the update before

    class FirstLayerOnly(TD3):
        def critic_loss(self, batch: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
            loss, q = super().critic_loss(batch, noise)
            if self.updates <= 20:
                return loss, q
            with_gradient.append([name for name, weight in self.critics.named_parameters() if weight.grad is not None])
            return self.critics.layers[0].weight.square().sum(), q

    fast = fit(make_trainer, FirstLayerOnly)
    assert type(fast.update_rule) is AutogradUpdate
    assert len(with_gradient[0]) > 1
    assert with_gradient[1:] == 9 * [["layers.0.weight"]]
    monkeypatch.setattr("td3_lightning.fast.autograd_update.supports", lambda module: False)
    usual = fit(make_trainer, FirstLayerOnly)
    assert usual.update_rule is usual
    for one, other in zip(state(fast), state(usual), strict=True):
        assert torch.equal(one, other)


def test_module_without_a_trainer_is_not_supported() -> None:
    assert make_rule(TD3(3, [-1.0], [1.0], hidden_dims=(4,))) is None

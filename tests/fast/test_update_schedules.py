"""Test that every update rule uses the scheduled values at `env_steps`."""

from typing import Any

import pytest
import torch

from td3_lightning import TD3, Collector, Linear, ReplayData
from td3_lightning.fast.manual_update import ManualUpdate

CONSTANT: dict[str, float] = {"tau": 0.5, "policy_noise": 0.25, "noise_clip": 0.125}
CONSTANT |= {"policy_freq": 2, "target_update_freq": 3, "max_grad_norm": 0.01}


def trained(make_trainer: Any, gradients: Any, **settings: Any) -> TD3:
    """Train for 20 updates with the same seeds."""
    torch.manual_seed(3)
    data = ReplayData("Pendulum-v1", steps_per_epoch=20, batch_size=4, capacity=100, eval_episodes=1)
    bounds = data.obs_dim, data.action_low, data.action_high
    module = TD3(*bounds, hidden_dims=[5], gradients=gradients, **settings)
    make_trainer(callbacks=[Collector(10)]).fit(module, datamodule=data)
    assert isinstance(module.update_rule, ManualUpdate) == (gradients == "manual")
    return module


def same(one: TD3, other: TD3) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("gradients", ["manual", "autograd"])
def test_updates_use_the_scheduled_value(gradients: str, make_trainer: Any) -> None:
    """A schedule that has reached its end trains as the constant does, and one that has not does not."""
    constant = trained(make_trainer, gradients, **CONSTANT)
    for name, value in CONSTANT.items():
        ended = {name: Linear(1.0, value, steps=5)}
        assert same(trained(make_trainer, gradients, **{**CONSTANT, **ended}), constant), name
        running = {name: Linear(1.0, value, steps=25)}
        assert not same(trained(make_trainer, gradients, **{**CONSTANT, **running}), constant), name


def test_weight_of_behavior_cloning_follows_its_schedule(make_trainer: Any) -> None:
    constant = trained(make_trainer, "autograd", bc_weight=0.1)
    assert same(trained(make_trainer, "autograd", bc_weight=Linear(1.0, 0.1, steps=5)), constant)
    assert not same(trained(make_trainer, "autograd", bc_weight=Linear(1.0, 0.1, steps=25)), constant)

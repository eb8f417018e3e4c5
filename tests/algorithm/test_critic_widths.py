"""Test critics whose hidden layers have other widths than the actor's."""

from typing import Any

import pytest
import torch

from td3_lightning import TD3, Batch, UsageError
from td3_lightning.serialization.values import InvalidValueError
from td3_lightning.serialization.weights import check_sizes_of


class PlainTD3(TD3):
    """TD3 without a Trainer."""

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        if not hasattr(self, "plain"):
            self.plain = self.configure_optimizers()
        return self.plain

    def manual_backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        loss.backward(*args, **kwargs)


def updated(gradients: Any) -> PlainTD3:
    """Return an agent of different widths after four updates."""
    torch.manual_seed(3)
    agent = PlainTD3(3, [-1.0], [1.0], (8,), critic_hidden_dims=(7, 5), gradients=gradients)
    agent.noise_generator.manual_seed(4)
    for update in range(4):
        obs, action, next_obs = torch.randn(6, 3), torch.rand(6, 1), torch.randn(6, 3)
        agent.training_step(Batch(obs, action, torch.randn(6), torch.full((6,), 0.9), next_obs), update)
    return agent


def test_manual_update_of_other_widths_is_autograds() -> None:
    fast = pytest.importorskip("td3_lightning.fast.manual_update")
    manual, autograd = updated("manual"), updated("autograd")
    assert fast.supports(manual)
    assert [tuple(weight.shape) for name, weight in manual.critics.named_parameters() if name.endswith("weight")] == [
        (2, 4, 7),
        (2, 7, 5),
        (2, 5, 1),
    ]
    assert manual.actor.layers[0].weight.shape == (8, 3)
    torch.testing.assert_close(manual.state_dict(), autograd.state_dict(), rtol=1e-4, atol=1e-6)


def test_hyperparameters_rebuild_the_widths() -> None:
    agent = TD3(3, [-1.0], [1.0], critic_hidden_dims=(7,))
    again = TD3(**agent.hparams)
    assert agent.hparams["critic_hidden_dims"] == [7]
    assert [p.shape for p in again.parameters()] == [p.shape for p in agent.parameters()]


def test_widths_are_checked() -> None:
    with pytest.raises(UsageError, match=r"critic_hidden_dims\[1\] must be .* got 0"):
        TD3(3, [-1.0], [1.0], critic_hidden_dims=(4, 0))
    with pytest.raises(InvalidValueError, match="critic_hidden_dims"):
        check_sizes_of({"critic_hidden_dims": [10**6, 10**6]}, {"weight": torch.zeros(10)}, "settings")

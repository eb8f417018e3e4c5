"""Losses of networks in half precision. On a CPU, `torch.autocast` stands for the Trainer's 16-mixed on a GPU."""

from typing import Any

import pytest
import torch

from td3_lightning import TD3, TD7, Batch, Collector, ReplayData
from td3_lightning.algorithm.sale import avg_l1_norm

SCALE = 2.0**16  # of the loss, as in the first steps of a GradScaler; larger than every float16
SIZES: Any = (3, [-1.0, -2.0], [1.0, 3.0])


def new_batch(size: int = 64) -> Batch:
    obs, next_obs = torch.randn(2, size, 3)
    return Batch(obs, torch.rand(size, 2), torch.randn(size), torch.full((size,), 0.9), next_obs)


@pytest.mark.parametrize("bc_weight", [None, 0.4])
@pytest.mark.parametrize("kind", [TD3, TD7])
def test_scaled_gradients_of_float16_networks_are_finite(kind: type[TD3], bc_weight: float | None) -> None:
    module, batch = kind(*SIZES, hidden_dims=(8, 8), bc_weight=bc_weight), new_batch()
    with torch.autocast("cpu", torch.float16):
        losses = {"actor": module.actor_loss(batch), "critics": module.critic_loss(batch, torch.zeros(64, 2))[0]}
        if isinstance(module, TD7):
            losses["encoder"] = module.encoder_loss(batch)
    for name, loss in losses.items():
        assert loss.dtype == torch.float32, name
        network = module.get_submodule(name)
        gradients = torch.autograd.grad(SCALE * loss, list(network.parameters()), allow_unused=True)
        assert all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients), name
        assert any(gradient is not None and gradient.any() for gradient in gradients), name


def test_evaluations_act_in_float32(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Collector and the command `test` do, so a policy is selected by the actions that it will have."""
    autocasts = []
    act = TD3.act

    def noted(self: TD3, obs: Any) -> Any:
        autocasts.append(torch.is_autocast_enabled("cpu"))
        return act(self, obs)

    monkeypatch.setattr(TD3, "act", noted)
    data = ReplayData("Pendulum-v1", eval_episodes=1, steps_per_epoch=5, batch_size=4)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[4])
    make_trainer(callbacks=[Collector(10)], max_epochs=1, precision="bf16-mixed").fit(module, datamodule=data)
    assert len(autocasts) >= 200
    assert not any(autocasts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_embedding_of_zeros_is_zero_in_every_precision(dtype: torch.dtype) -> None:
    assert not avg_l1_norm(torch.zeros(2, 4, dtype=dtype)).any()
    assert avg_l1_norm(torch.ones(2, 4, dtype=dtype)).dtype == (dtype if dtype.itemsize > 2 else torch.float32)

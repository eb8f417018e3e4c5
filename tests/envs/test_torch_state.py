"""Check that the constructor of an environment does not change the global state of PyTorch for the learner."""

from typing import Any

import torch

from td3_lightning import TD3, Collector, ReplayData
from toys import Seeded


class Careless(Seeded):
    """Disable gradients and set another default device."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_grad_enabled(False)
        torch.set_default_device("meta")


def test_careless_environment_trains_like_a_careful_one(make_trainer: Any) -> None:
    weights = []
    for kind in (Careless, Seeded):
        torch.manual_seed(3)
        data = ReplayData(kind, batch_size=4, steps_per_epoch=20, eval_episodes=1, capacity=500)
        module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
        make_trainer(callbacks=[Collector(10)], max_epochs=2).fit(module, datamodule=data)
        assert module.updates == 40
        assert torch.is_grad_enabled()
        assert torch.get_default_device() == torch.device("cpu")
        weights.append(torch.cat([weight.detach().flatten() for weight in module.parameters()]))
    assert torch.equal(*weights)

"""Check that an environment that changes the global state of PyTorch does not affect the learner."""

from typing import Any

import pytest
import torch

from td3_lightning import TD3, Collector, ReplayData
from toys import Seeded


class Careless(Seeded):
    """Disable gradients and set another default device, in the constructor or in each step."""

    def __init__(self, place: str = "constructor") -> None:
        super().__init__()
        self.place = place
        self._spoil("constructor")

    def _spoil(self, place: str) -> None:
        if place == self.place:
            torch.set_grad_enabled(False)
            torch.set_default_device("meta")

    def step(self, action: Any) -> Any:
        self._spoil("step")
        return super().step(action)


@pytest.mark.parametrize("place", ["constructor", "step"])
def test_careless_environment_trains_like_a_careful_one(place: str, make_trainer: Any) -> None:
    weights = []
    for kind in (place, "nowhere"):
        torch.manual_seed(3)
        data = ReplayData(Careless, {"place": kind}, batch_size=4, steps_per_epoch=20, eval_episodes=1, capacity=500)
        module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
        make_trainer(callbacks=[Collector(10)], max_epochs=2).fit(module, datamodule=data)
        assert module.updates == 40
        assert torch.is_grad_enabled()
        assert torch.get_default_device() == torch.device("cpu")
        weights.append(torch.cat([weight.detach().flatten() for weight in module.parameters()]))
    assert torch.equal(*weights)

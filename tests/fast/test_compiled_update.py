"""Test the mode of torch.compile on each kind of device, without that device."""

import pytest
import torch

from td3_lightning import TD3
from td3_lightning.fast.compiled_update import CompiledUpdate


@pytest.mark.parametrize(("device", "mode"), [("cuda", "reduce-overhead"), ("cpu", None), ("mps", None)])
def test_losses_are_compiled_with_cuda_graphs_only_on_cuda(
    device: str, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[str, str | None]] = []
    monkeypatch.setattr(torch, "compile", lambda loss, mode: compiled.append((loss.__name__, mode)))
    monkeypatch.setattr(TD3, "device", property(lambda module: torch.device(device)))
    module = TD3(3, [-1.0], [1.0], hidden_dims=[4], gradients="compiled")
    assert type(module.update_rule) is CompiledUpdate
    assert compiled == [("critic_loss", mode), ("actor_loss", mode)]
    rule = module.update_rule
    module.on_train_epoch_start()
    assert module.update_rule is rule
    monkeypatch.setattr(TD3, "device", property(lambda module: torch.device("xpu")))
    module.on_train_epoch_start()
    assert module.update_rule is not rule
    assert compiled[2:] == [("critic_loss", None), ("actor_loss", None)]

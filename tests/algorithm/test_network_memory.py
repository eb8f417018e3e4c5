"""Networks that do not fit into the memory of the machine are refused before a weight is allocated."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from one_sentence import refused
from td3_lightning import TD3, TD7, Convolutions, Trunk
from td3_lightning.algorithm import network_memory
from td3_lightning.algorithm.network_memory import check_memory

BOX = ([-1.0, -1.0], [1.0, 1.0])


def online_weights(agent: TD3) -> int:
    """Count the weights of the networks that are trained, without biases."""
    online = [module for name, module in agent.named_children() if "target" not in name and "fixed" not in name]
    return sum(weight.numel() for module in online for name, weight in module.named_parameters() if "weight" in name)


@pytest.mark.parametrize(
    "agent",
    [
        TD3(7, *BOX),
        TD3(7, *BOX, hidden_dims=[], num_critics=1),
        TD3(7, *BOX, hidden_dims=[8, 16, 4], critic_hidden_dims=[5, 9], num_critics=3),
        TD7(7, *BOX, hidden_dims=[8, 16, 4], zs_dim=5, num_critics=3),
    ],
    ids=["default", "linear", "widths", "TD7"],
)
def test_number_of_weights_is_that_of_the_networks(agent: TD3) -> None:
    assert agent.settings.num_weights == online_weights(agent)


@pytest.mark.parametrize(
    ("make", "setting", "value"),
    [
        (lambda: TD3(3, *BOX, hidden_dims=[10**9]), "hidden_dims", "[1000000000]"),
        (lambda: TD3(3, *BOX, hidden_dims=[10**6, 10**6]), "hidden_dims", "[1000000, 1000000]"),
        (lambda: TD3(3, *BOX, critic_hidden_dims=[10**18]), "critic_hidden_dims", f"[{10**18}]"),
        (lambda: TD3(3, *BOX, num_critics=10**9), "num_critics", "1000000000"),
        (lambda: TD7(3, *BOX, zs_dim=10**9), "zs_dim", "1000000000"),
        (lambda: TD3(3, *BOX, encoder=Trunk([10**10])), "Trunk.widths", "[10000000000]"),
        (lambda: Convolutions(10**9).build(4 * 84 * 84 * 3), "Convolutions.features", "1000000000"),
    ],
)
def test_huge_networks_are_refused(
    make: Callable[[], Any], setting: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda layer: pytest.fail("allocated"))
    monkeypatch.setattr(network_memory.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**22}.__getitem__)
    with refused(setting, value, fix="smaller"):
        make()


def test_limit_is_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_memory.os, "sysconf", {"SC_PAGE_SIZE": 1000, "SC_PHYS_PAGES": 2}.__getitem__)
    check_memory({"hidden_dims": [100]}, 100)  # 5 float32 numbers for each weight are 2,000 bytes
    with refused("hidden_dims", "[101]"):
        check_memory({"hidden_dims": [101]}, 101)

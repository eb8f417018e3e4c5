"""Adam's memory of silent units."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, Collector, ReplayData
from td3_lightning.training.upkeep import FLUSH_INTERVAL, TINY, flush_denormals


def gradients(shape: torch.Size, updates: int) -> Iterator[torch.Tensor]:
    """Of a unit that learns, one that is silent after a while, and one that hardly learns."""
    generator = torch.Generator().manual_seed(0)
    for update in range(updates):
        gradient = torch.randn(shape, generator=generator)
        gradient[1] *= update < 50
        gradient[2] *= 1e-20
        yield gradient


@pytest.fixture(autouse=True)
def keep_denormals() -> None:
    """Undo what a test before this one, or a library that it imported, may have set for this thread."""
    torch.set_flush_denormal(False)


def memories(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [memory for state in optimizer.state.values() for memory in state.values() if memory.ndim]


def subnormal(memory: torch.Tensor) -> torch.Tensor:
    return (memory != 0) & (memory.abs() < TINY)


@pytest.mark.parametrize("fused", [True, False])
def test_no_weight_changes_by_a_bit(fused: bool) -> None:
    cleared = nn.Parameter(torch.randn(3, 64))
    left = copy.deepcopy(cleared)
    optimizers = [torch.optim.Adam([weight], lr=1e-3, fused=fused) for weight in (cleared, left)]
    for update, gradient in enumerate(gradients(cleared.shape, 2_000), start=1):
        for weight, optimizer in zip((cleared, left), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
        if update % FLUSH_INTERVAL == 0:
            flush_denormals(optimizers[0])
    assert torch.equal(cleared, left)
    assert any(subnormal(memory)[1].any() for memory in memories(optimizers[1])), "nothing had to be cleared"
    assert not any(subnormal(memory).any() for memory in memories(optimizers[0]))
    for kept, whole in zip(memories(optimizers[0]), memories(optimizers[1]), strict=True):
        assert torch.equal(kept[0], whole[0])  # what is large enough stays


def test_a_run_clears_them_in_both_optimizers(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ReplayData(
        "toys/Seeded-v0", steps_per_epoch=2 * FLUSH_INTERVAL + 1, batch_size=4, capacity=500, eval_episodes=1
    )
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(8, 8))
    cleared = []

    def clear(optimizer: torch.optim.Optimizer) -> None:
        cleared.append((module.updates, optimizer.state))
        flush_denormals(optimizer)

    monkeypatch.setattr("td3_lightning.training.upkeep.flush_denormals", clear)
    trainer = make_trainer(callbacks=[Collector(warmup_steps=10)])
    trainer.fit(module, datamodule=data)
    expected = [
        (updates, optimizer.state)
        for updates in (FLUSH_INTERVAL, 2 * FLUSH_INTERVAL)
        for optimizer in trainer.optimizers
    ]
    assert [updates for updates, _ in cleared] == [updates for updates, _ in expected]
    assert all(state is wanted for (_, state), (_, wanted) in zip(cleared, expected, strict=True))

"""Operations as one: the same numbers as the function itself gives, whatever shares memory."""

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from td3_lightning.fast.traced import MAX_TRACES, TracedFunction


class Walk:
    """Writes over what it remembers, through views too."""

    def __init__(self) -> None:
        self.whole, self.weight, self.calls = torch.zeros(2, 3), torch.full((3, 3), 0.5), 0
        self.rows = list(self.whole)  # other tensors of the same memory

    def memory(self) -> list[Tensor]:
        return [self.whole, self.weight, *self.rows, self.whole]

    def step(self, move: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        before = self.whole.sum()
        self.rows[0].add_(move)
        between = self.whole.sum()  # the same sum of another content
        torch.mm(self.whole.clone(), self.weight, out=self.whole)
        self.rows[1].mul_(turn)
        return self.whole * 2, torch.stack([before, between, self.whole.sum()])


def moves(seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(3, generator=random), torch.randn((), generator=random)


def test_results_and_memory_are_the_functions() -> None:
    plain, noted = Walk(), Walk()
    recorded = TracedFunction(noted.step, noted.memory)
    for seed in range(6):
        expected, came = plain.step(*moves(seed)), recorded(*moves(seed))
        assert all(torch.equal(one, other) for one, other in zip(expected, came, strict=True))
        assert torch.equal(plain.whole, noted.whole)
        assert len(set(came[1].tolist())) == 3, "the three sums are of three contents"
        for walk in (plain, noted):
            walk.weight.add_(0.1)  # by others
    assert noted.calls == 2, "as it is, then noted, then never again"


def test_what_is_not_in_the_memory_is_no_constant() -> None:
    walk = Walk()
    recorded = TracedFunction(walk.step, lambda: [walk.whole, *walk.rows])
    recorded(*moves(1))
    with pytest.raises(RuntimeError, match=r"shape \(3, 3\) is missing in"):
        recorded(*moves(2))


def test_nobody_is_warned() -> None:
    walk = Walk()
    recorded = TracedFunction(walk.step, walk.memory)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(4):
            recorded(*moves(seed))


def test_a_python_that_cannot_record_calls_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("td3_lightning.fast.traced.CAN_TRACE", False)
    plain, called = Walk(), Walk()
    recorded = TracedFunction(called.step, called.memory)
    for seed in range(4):
        assert torch.equal(plain.step(*moves(seed))[0], recorded(*moves(seed))[0])
    assert called.calls == 4


def test_a_process_records_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("td3_lightning.fast.traced._traces", MAX_TRACES - 2)
    walks = [Walk() for _ in range(4)]
    for walk in walks:
        recorded = TracedFunction(walk.step, walk.memory)
        for seed in range(5):
            recorded(*moves(seed))
    assert [walk.calls for walk in walks] == [2, 2, 5, 5]
    assert all(torch.equal(walk.whole, walks[0].whole) for walk in walks)


def test_without_torchs_jit_the_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import torch
from td3_lightning.fast.traced import TracedFunction
count = torch.zeros(3)
add = TracedFunction(lambda more: count.add_(more).clone(), lambda: [count])
print([add(torch.ones(3))[0].item() for _ in range(4)])
"""
    monkeypatch.setenv("PYTORCH_JIT", "0")
    ran: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout == "[1.0, 2.0, 3.0, 4.0]\n"

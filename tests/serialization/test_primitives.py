"""Conversion of values to tensors and plain Python values."""

import io
from collections import OrderedDict, defaultdict, deque, namedtuple
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from td3_lightning.checkpointing.io import AtomicCheckpointIO
from td3_lightning.errors import UsageError
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from td3_lightning.serialization.primitives import as_arrays, to_primitives

Pair = namedtuple("Pair", "one other")
BECOMES: list[tuple[Any, Any]] = [
    (np.float64(2.5), 2.5),
    (np.int32(7), 7),
    (np.bool_(True), True),
    (np.str_("text"), "text"),
    (np.array([1.5, 2.5]), torch.tensor([1.5, 2.5], dtype=torch.float64)),
    (deque([1, np.int64(2)], maxlen=3), [1, 2]),
    (Pair(1, np.int8(2)), (1, 2)),
    (frozenset({1}), [1]),
    ({2}, [2]),
    (defaultdict(list, {"a": deque([1])}), {"a": [1]}),
    (OrderedDict(a=1, b=np.float32(0.5)), {"a": 1, "b": 0.5}),
    ({"a": [({"b": np.float64(1)},)]}, {"a": [({"b": 1.0},)]}),
]


@pytest.mark.parametrize(("value", "expected"), BECOMES, ids=lambda value: type(value).__name__)
def test_values_become_primitives_and_can_be_loaded(value: Any, expected: Any) -> None:
    plain, file = to_primitives(value, "it"), io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    for result in (plain, torch.load(file, weights_only=True)):
        assert type(result) is type(expected)
        assert torch.equal(result, expected) if isinstance(expected, torch.Tensor) else result == expected


def test_primitives_stay_the_same_object() -> None:
    weights = OrderedDict(weight=torch.zeros(2), step=torch.tensor(1.0))
    value = {"weights": weights, "shape": torch.Size([2]), "rest": [None, True, 1, 2.5, 1j, "a", b"b", (1,)]}
    assert to_primitives(value, "it") is value


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"a": {"b": [0, timedelta(1)]}}, "state.a.b.1 must be made of dense tensors.* got a timedelta"),
        (np.array([None]), "state must be made of dense tensors.* got a ndarray"),
        ({"a": {(1, 2): 3}}, r"a key of state.a must be a string or a number to be saved, got \(1, 2\)"),
        (torch.eye(2).to_sparse(), r"state must be made of dense tensors.* got a Tensor"),
    ],
)
def test_other_values_are_refused_by_name(value: Any, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        to_primitives(value, "state")


class Labelled(torch.Tensor):
    """Tensor of a user's class."""


def with_attribute(value: Any) -> Any:
    value.label = "x"
    return value


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(1).expand(5),
        torch.ones(5).as_subclass(Labelled),
        with_attribute(torch.ones(5)),
        with_attribute(torch.nn.Parameter(torch.ones(5))),
    ],
    ids=["expanded", "subclass", "attribute", "parameter"],
)
def test_unusual_tensors_can_be_loaded(value: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    AtomicCheckpointIO().save_checkpoint({"clocks": {}, "hyper_parameters": {}, "state_dict": {"weight": value}}, path)
    loaded = read_checkpoint(path)["state_dict"]["weight"]
    assert type(loaded) is torch.Tensor
    assert torch.equal(loaded, torch.ones(5))


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937])
def test_numpy_generators_are_restored(kind: Any) -> None:
    one, other, file = kind(5), kind(6), io.BytesIO()
    np.random.Generator(one).normal(size=3)
    torch.save(to_primitives(one.state, "it"), file)
    file.seek(0)
    other.state = as_arrays(torch.load(file, weights_only=True))
    np.testing.assert_array_equal(np.random.Generator(other).normal(size=9), np.random.Generator(one).normal(size=9))

"""Test the values and the validation of schedules."""

from typing import Any

import numpy as np
import pytest

from one_sentence import refused
from td3_lightning import TD3, Constant, Linear, Trunk, UsageError
from td3_lightning.algorithm.encoders import as_encoder
from td3_lightning.schedules import Schedule, as_schedule


@pytest.mark.parametrize(
    ("env_steps", "value"),
    [(0, 1.0), (99, 1.0), (100, 1.0), (101, 0.995), (150, 0.75), (199, 0.505), (200, 0.5), (10**9, 0.5)],
)
def test_linear_values(env_steps: int, value: float) -> None:
    assert Linear(1.0, 0.5, steps=100, begin=100)(env_steps) == pytest.approx(value, abs=1e-12)


def test_linear_may_rise_and_ends_exactly() -> None:
    rising = Linear(0.1, 0.7, steps=3)
    assert [rising(step) for step in (0, 3, 4)] == [0.1, 0.7, 0.7]
    assert rising(1) == pytest.approx(0.3)
    start, end = 0.7, 0.05
    assert start + (end - start) != end, "the sum rounds"
    assert Linear(start, end, steps=3)(3) == end


def test_constant_values() -> None:
    assert Constant(3)(0) == Constant(3)(10**9) == 3.0
    assert isinstance(Constant(3)(0), float)


@pytest.mark.parametrize("value", [0.3, 1, np.float64(0.3), np.float32(0.5)])
def test_number_becomes_a_constant(value: Any) -> None:
    assert as_schedule("tau", value)(17) == float(value)


def test_line_of_no_steps_is_refused() -> None:
    with refused("Linear.steps", "0"):
        Linear(1.0, 0.0, steps=0)


class Hidden(Schedule):
    """Store the argument under another name."""

    def __init__(self, start: float) -> None:
        self._start = start

    def __call__(self, env_steps: int) -> float:
        return self._start


def test_schedule_without_its_arguments_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^Hidden must store each constructor argument .* got a mismatch in _start, start\. Rename"
    ):
        TD3(3, [-1.0], [1.0], hidden_dims=(4,), actor_lr=Hidden(1e-3))


def test_public_path_names_the_class() -> None:
    arguments = {"start": 1.0, "end": 0.0, "steps": 9}
    public, full = (
        as_schedule("tau", {"class_path": f"{module}.Linear", "init_args": arguments})
        for module in ("td3_lightning", "td3_lightning.schedules")
    )
    assert repr(public) == repr(full) == "Linear(start=1.0, end=0.0, steps=9, begin=0)"
    assert type(as_encoder("encoder", {"class_path": "td3_lightning.Trunk", "init_args": {"widths": [3]}})) is Trunk


@pytest.mark.parametrize(
    ("setting", "schedule", "message"),
    [
        ("actor_lr", Linear(-1, 2, 9), "actor_lr must be at least 0, got -1.0. Use a larger value."),
        ("critic_lr", Linear(2, -0.4, 9), "the end of critic_lr must be at least 0, got -0.4. Use a larger value."),
    ],
)
def test_schedules_have_a_range(setting: str, schedule: Linear, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        TD3(3, [-1.0], [1.0], hidden_dims=(4,), **{setting: schedule})  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)

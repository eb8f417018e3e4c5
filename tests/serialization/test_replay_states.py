"""Check that a step in a checkpoint must agree with the running episodes."""

import copy
from typing import Any

import pytest
import torch

from td3_lightning.serialization.replay_states import rank
from td3_lightning.serialization.values import InvalidValueError

EPISODE = {"actions": torch.ones(1, 2), "obs": torch.ones(3)}
STEP = {
    "obs": torch.ones(2, 3),
    "action": torch.ones(2, 2),
    "reward": [0.5, float("nan")],
    "terminated": [True, False],
    "truncated": [True, False],
    "last_obs": torch.ones(2, 3),
    "reports": [{"return": 1.0, "length": 3.0}],
}
LAYOUT = {"obs_dim": 3, "action_dim": 2, "capacity": 9, "num_envs": 2, "n_step": 1, "reward_scale": 1.0}
RING = {"written": 0, "running": 0, "pending": 0, "transitions": 0, "rows": []}
STATE = {
    "envs": {"episodes": [EPISODE] * 2, "step": STEP},
    "replay": {"layout": LAYOUT, "steps_stored": 0, "generator": torch.get_rng_state(), "rings": [RING] * 2},
}


def test_step_is_accepted() -> None:
    rank(STATE, "state")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("obs", torch.ones(2, 4), "obs must be 3 numbers wide"),
        ("obs", torch.ones(3, 3), "obs must be 2 long, one for each episode"),
        ("last_obs", torch.ones(2, 3).double(), "last_obs must be a float32 tensor with two axes"),
        ("last_obs", torch.ones(2), "last_obs must be a float32 tensor with two axes"),
        ("action", torch.ones(2, 1), "action must be 2 numbers wide"),
        ("reward", [1.0], "reward must be 2 long, one for each episode"),
        ("reward", ["x", 1.0], "reward.0 must be a number"),
        ("terminated", [1, 0], "terminated.0 must be true or false"),
        ("truncated", [True, True], "reports must be a list of 2, one for each end"),
        ("reports", [], "reports must be a list of 1, one for each end"),
        ("reports", [{"length": 3.0}], 'reports.0 must be a mapping with the key "return"'),
    ],
)
def test_step_of_other_sizes_is_refused(field: str, value: Any, said: str) -> None:
    state = copy.deepcopy(STATE)
    state["envs"]["step"][field] = value  # type: ignore[index]
    with pytest.raises(InvalidValueError, match=f"^state.envs.step.{said}"):
        rank(state, "state")


def test_step_without_a_field_is_refused() -> None:
    state = copy.deepcopy(STATE)
    del state["envs"]["step"]["action"]  # type: ignore[attr-defined]
    with pytest.raises(InvalidValueError, match=r'^state.envs.step must be a mapping with the key "action"'):
        rank(state, "state")

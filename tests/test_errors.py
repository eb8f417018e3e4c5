"""Test the accepted values and the errors of every argument of the public constructors."""

import re
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch

import td3_lightning
from td3_lightning import (
    TD3,
    TD7,
    ActionNoise,
    ActionRepeat,
    Collector,
    Constant,
    Convolutions,
    Hindsight,
    Linear,
    ObservationNoise,
    Pixels,
    PolicyCheckpoint,
    Replay,
    ReplayData,
    StopWhenSolved,
    SymmetricActionBounds,
    Trunk,
    UsageError,
)
from td3_lightning.errors import require_float
from toys import Counter

SMALL: dict[Any, dict[str, Any]] = {  # arguments with which a class can be made
    TD3: {"obs_dim": 3, "action_low": [-1.0], "action_high": [1.0], "hidden_dims": (4,)},
    TD7: {"obs_dim": 3, "action_low": [-1.0], "action_high": [1.0], "hidden_dims": (4,), "zs_dim": 4},
    ReplayData: {"env_id": "toys/Counter-v0", "steps_per_epoch": 20, "batch_size": 4, "capacity": 500},
    Replay: {"obs_dim": 1, "action_dim": 1, "capacity": 50},
    Linear: {"start": 1.0, "end": 0.0, "steps": 10},
    StopWhenSolved: {"threshold": 1.0},
    Trunk: {"widths": [4]},
    **{kind: {"env": Counter()} for kind in (ActionRepeat, SymmetricActionBounds, ActionNoise, ObservationNoise)},
}
INTEGERS = {
    TD3: "obs_dim num_critics policy_freq target_update_freq",
    TD7: "obs_dim num_critics policy_freq target_update_freq zs_dim",
    ReplayData: "num_envs capacity batch_size n_step steps_per_epoch eval_episodes test_episodes",
    Replay: "obs_dim action_dim capacity batch_size batches_per_epoch n_step num_envs",
    Collector: "warmup_steps random_steps",
    Linear: "steps begin",
    Pixels: "stack height width shift",
    Convolutions: "features stack height width",
    ActionRepeat: "repeat",
    PolicyCheckpoint: "early_episodes late_episodes switch_after",
    StopWhenSolved: "window",
}
NUMBERS = {
    TD3: "tau policy_noise noise_clip max_grad_norm actor_lr critic_lr bc_weight",
    TD7: "tau policy_noise noise_clip max_grad_norm actor_lr critic_lr encoder_lr bc_weight",
    ReplayData: "gamma reward_scale updates_per_step priority_alpha",
    Replay: "gamma reward_scale priority_alpha",
    Collector: "exploration_noise",
    Linear: "start end",
    Constant: "value",
    SymmetricActionBounds: "bound",
    ActionNoise: "std",
    ObservationNoise: "std",
    Hindsight: "share",
    PolicyCheckpoint: "reset_weight",
    StopWhenSolved: "threshold",
}
BOOLS = {
    TD3: "layer_norm normalize_observations",
    TD7: "normalize_observations",
    ReplayData: "empty_replay",
    Convolutions: "shared",
    Trunk: "shared",
}
LISTS = {TD3: "hidden_dims", TD7: "hidden_dims", Trunk: "widths"}
NOT_LISTED = {  # the tests of their modules have them: other values are valid, or the name in the error is longer
    *(f"{kind}.action_{end}" for kind in ("TD3", "TD7") for end in ("low", "high")),
    *("AveragedWeights.decay", "Dataset.offline", "Dataset.share", "Progress.refresh_seconds", "ReplayData.test_seed"),
    *("Collector.collect", "Replay.history"),
}
GOOD = {"height": 84, "width": 84, "capacity": 60}


def cases(listed: dict[Any, str]) -> Any:
    pairs = [(kind, name) for kind, names in listed.items() for name in names.split()]
    return pytest.mark.parametrize(("kind", "name"), pairs, ids=lambda each: getattr(each, "__name__", each))


def make(kind: Callable[..., Any], name: str, value: Any) -> Any:
    return kind(**{**SMALL.get(kind, {}), name: value})


def refused(kind: Callable[..., Any], name: str, value: Any) -> str:
    """Return the error without the words before the name of the argument."""
    with pytest.raises(UsageError) as caught:
        make(kind, name, value)
    found = re.search(rf"\b{name}\b.* must be .*, got .*\. .*", str(caught.value))
    assert found, caught.value
    return re.sub(f"{name} of \\w+", name, found[0])


def test_every_argument_of_a_public_class_is_in_a_list() -> None:
    listed = {
        (kind, name) for each in (INTEGERS, NUMBERS, BOOLS, LISTS) for kind in each for name in each[kind].split()
    }
    public = [
        getattr(td3_lightning, name) for name in td3_lightning.__all__ if name not in ("Policy", "Actor", "Critics")
    ]
    built = [kind for kind in public if isinstance(kind, type) and not issubclass(kind, Exception)]
    arguments = [(kind, each) for kind in built for each in signature(kind).parameters.values()]
    assert len(arguments) > 100
    missing = {
        f"{kind.__name__}.{each.name}"
        for kind, each in arguments
        if re.search(r"\b(int|float|bool)\b", str(each.annotation)) and (kind, each.name) not in listed
    }
    assert missing == NOT_LISTED


@cases(INTEGERS)
def test_integers(kind: Any, name: str) -> None:
    """Accept integers of NumPy and torch. Refuse floats, strings, bools and numbers out of range with a fix."""
    good = GOOD.get(name, 2)
    for number in (np.int64(good), np.array(good), torch.tensor(good)):
        make(kind, name, number)
    for wrong in (2.0, 2.5, True, [2], "2"):
        assert refused(kind, name, wrong) == f"{name} must be an integer, got {wrong!r}. Use an integer."
    out = r"must be (at least \d+|in \[\d+, \d+\]), got -1\. (Use |Omit it |The paper uses )"
    assert re.match(f"{name} {out}", refused(kind, name, -1))


@cases(NUMBERS)
def test_numbers(kind: Any, name: str) -> None:
    for good in (1, np.float32(0.5), np.int64(1), torch.tensor(0.5)):
        make(kind, name, good)
    for wrong in ("0.5", True, [0.5], 1j):
        assert re.match(rf"{name} must be a number( or a Schedule)?, got ", refused(kind, name, wrong))
    for wrong in (float("nan"), float("inf"), 10**400):
        assert len(refused(kind, name, wrong)) < 300


@cases(BOOLS)
def test_bools(kind: Any, name: str) -> None:
    make(kind, name, np.bool_(False))
    for wrong in ("false", 1, None):
        expected = f"{name} must be true or false, got {wrong!r}. Use true or false without quotes."
        assert refused(kind, name, wrong) == expected


@cases(LISTS)
def test_lists_of_integers(kind: Any, name: str) -> None:
    for good in ([8, 4], np.array([8, 4]), [np.int64(8), 4]):
        make(kind, name, good)
    for wrong in ([4, 8.0], [0], 8, "88"):
        refused(kind, name, wrong)


def test_values_are_kept_as_plain_python() -> None:
    settings = {"policy_freq": np.int64(2), "tau": np.float32(0.5), "hidden_dims": np.array([8])}
    kept = TD3(**{**SMALL[TD3], **settings}).hparams
    assert [type(kept[name]) for name in settings] == [int, float, list]
    assert type(kept["hidden_dims"][0]) is int


def test_intervals_are_named() -> None:
    cases: list[tuple[dict[str, float], float, str]] = [
        ({"least": 0, "most": 1}, 2, "in [0, 1], got 2. Use a smaller value."),
        ({"above": 0, "most": 1}, 0, "in (0, 1], got 0. Use a larger value."),
        ({"least": 0, "below": 1}, 1, "in [0, 1), got 1. Use a smaller value."),
        ({"above": 0}, 0.0, "greater than 0, got 0.0. Use a larger value."),
        ({"most": 0}, 1, "at most 0, got 1. Use a smaller value."),
        ({}, float("inf"), "finite, got inf. Use a finite number."),
    ]
    for interval, value, expected in cases:
        with pytest.raises(UsageError, match=re.escape(f"x must be {expected}")):
            require_float("x", value, **interval)

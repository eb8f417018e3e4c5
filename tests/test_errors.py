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
    Actor,
    Collector,
    Constant,
    Critics,
    Curve,
    EvalVideo,
    Linear,
    ObservationNoise,
    PolicyCheckpoint,
    Replay,
    ReplayData,
    StopWhenSolved,
    Trunk,
    UsageError,
)
from td3_lightning.algorithm.pixel_encoder import Convolutions
from td3_lightning.envs.car_racing import CarRacing
from td3_lightning.envs.wrappers import ActionRepeat, SymmetricActionBounds
from td3_lightning.errors import as_float, require_float, require_int
from td3_lightning.replay.pixels import Pixels
from toys import Counter


def td3(**settings: Any) -> TD3:
    return TD3(**{"obs_dim": 3, "action_low": [-1.0], "action_high": [1.0], "hidden_dims": (4,), **settings})


def td7(**settings: Any) -> TD7:
    sizes = {"obs_dim": 3, "action_low": [-1.0], "action_high": [1.0], "hidden_dims": (4,), "zs_dim": 4}
    return TD7(**{**sizes, **settings})


def data(**settings: Any) -> ReplayData:
    return ReplayData("toys/Counter-v0", **{"steps_per_epoch": 20, "batch_size": 4, "capacity": 500, **settings})


def replay(**settings: Any) -> Replay:
    return Replay(**{"obs_dim": 1, "action_dim": 1, "capacity": 50, **settings})


def actor(**settings: Any) -> Actor:
    return Actor(**{"obs_dim": 3, "action_low": [-1.0], "action_high": [1.0], **settings})


def critics(**settings: Any) -> Critics:
    return Critics(**{"obs_dim": 3, "action_dim": 1, **settings})


def line(**settings: Any) -> Linear:
    return Linear(**{"start": 1.0, "end": 0.0, "steps": 10, **settings})


def repeated(**settings: Any) -> ActionRepeat:
    return ActionRepeat(Counter(), **settings)


def bound(**settings: Any) -> SymmetricActionBounds:
    return SymmetricActionBounds(Counter(), **settings)


def noisy_actions(**settings: Any) -> ActionNoise:
    return ActionNoise(Counter(), **settings)


def noisy_observations(**settings: Any) -> ObservationNoise:
    return ObservationNoise(Counter(), **settings)


def solved(**settings: Any) -> StopWhenSolved:
    return StopWhenSolved(**{"threshold": 1.0, **settings})


def trunk(**settings: Any) -> Trunk:
    return Trunk(**{"widths": [4], **settings})


INTEGERS: list[tuple[Callable[..., Any], str, str]] = [  # constructor, argument, and name in the error
    *((td3, name, name) for name in ("obs_dim", "num_critics", "policy_freq", "target_update_freq")),
    *((td7, name, name) for name in ("obs_dim", "zs_dim", "num_critics", "policy_freq", "target_update_freq")),
    *((data, name, name) for name in ("num_envs", "capacity", "batch_size", "n_step", "steps_per_epoch")),
    *((data, name, name) for name in ("eval_episodes", "test_episodes")),
    *((replay, name, name) for name in ("obs_dim", "action_dim", "capacity", "batch_size", "batches_per_epoch")),
    *((replay, name, name) for name in ("n_step", "num_envs", "history")),
    *((Collector, name, name) for name in ("warmup_steps", "random_steps", "collect")),
    (actor, "obs_dim", "obs_dim"),
    *((critics, name, name) for name in ("obs_dim", "action_dim", "num_critics")),
    *((line, name, f"Linear.{name}") for name in ("steps", "begin")),
    *((Pixels, name, f"pixels.{name}") for name in ("stack", "height", "width", "shift")),
    *((Convolutions, name, f"Convolutions.{name}") for name in ("features", "stack", "height", "width")),
    *((CarRacing, name, name) for name in ("track_seed", "stall_limit", "missed_limit")),
    (repeated, "repeat", "repeat of ActionRepeat"),
    (Curve, "every_n_steps", "every_n_steps"),
    *((EvalVideo, name, name) for name in ("every_n_evaluations", "height", "max_frames")),
    *((PolicyCheckpoint, name, name) for name in ("early_episodes", "late_episodes", "switch_after")),
    (solved, "window", "window"),
]
NUMBERS: list[tuple[Callable[..., Any], str, str]] = [
    *((td3, name, name) for name in ("tau", "policy_noise", "noise_clip", "max_grad_norm", "actor_lr", "critic_lr")),
    (td3, "bc_weight", "bc_weight"),
    *((td7, name, name) for name in ("encoder_lr", "actor_lr", "critic_lr", "tau", "policy_noise", "noise_clip")),
    *((td7, name, name) for name in ("max_grad_norm", "bc_weight")),
    *((data, name, name) for name in ("gamma", "reward_scale", "updates_per_step", "priority_alpha")),
    *((replay, name, name) for name in ("gamma", "reward_scale", "priority_alpha")),
    (Collector, "exploration_noise", "exploration_noise"),
    *((line, name, f"Linear.{name}") for name in ("start", "end")),
    (Constant, "value", "Constant.value"),
    (CarRacing, "missed_cost", "missed_cost"),
    (bound, "bound", "bound of SymmetricActionBounds"),
    (noisy_actions, "std", "std of ActionNoise"),
    (noisy_observations, "std", "std of ObservationNoise"),
    (PolicyCheckpoint, "reset_weight", "reset_weight"),
    (solved, "threshold", "threshold"),
]
BOOLS: list[tuple[Callable[..., Any], str, str]] = [
    *((td3, name, name) for name in ("layer_norm", "normalize_observations", "normalize_rewards")),
    *((td7, name, name) for name in ("normalize_observations", "normalize_rewards")),
    *((data, name, name) for name in ("empty_replay",)),
    (actor, "layer_norm", "layer_norm"),
    (critics, "layer_norm", "layer_norm"),
    (CarRacing, "draw_rays", "draw_rays"),
    (Convolutions, "shared", "Convolutions.shared"),
    (trunk, "shared", "Trunk.shared"),
]
LISTS: list[tuple[Callable[..., Any], str, str]] = [
    *((td3, name, name) for name in ("hidden_dims", "critic_hidden_dims")),
    (td7, "hidden_dims", "hidden_dims"),
    (actor, "hidden_dims", "hidden_dims"),
    (critics, "hidden_dims", "hidden_dims"),
    (Trunk, "widths", "Trunk.widths"),
]
NOT_LISTED = {  # the tests of their modules have them: other values are valid, or the name in the error is longer
    *(f"{kind}.action_{end}" for kind in ("TD3", "Actor", "TD7") for end in ("low", "high")),
    *("AveragedWeights.decay", "Dataset.offline", "Dataset.share", "Progress.refresh_seconds", "ReplayData.test_seed"),
}
GOOD_INTEGERS = {"height": 84, "width": 84, "capacity": 60}


def refused(make: Callable[..., Any], argument: str, value: Any) -> str:
    with pytest.raises(UsageError) as caught:
        make(**{argument: value})
    return str(caught.value)


@pytest.mark.parametrize(("make", "argument", "name"), INTEGERS)
def test_integers(make: Callable[..., Any], argument: str, name: str) -> None:
    """Accept integers of NumPy. Refuse floats, strings and bools with a fix."""
    good = GOOD_INTEGERS.get(argument, 2)
    for kind in (np.int64, np.uint16, np.array, torch.tensor):
        make(**{argument: kind(good)})
    assert refused(make, argument, float(good)) == f"{name} must be an integer, got {float(good)}. Use {good}."
    assert refused(make, argument, np.float32(good)) == f"{name} must be an integer, got {float(good)}. Use {good}."
    for wrong, fix in ((2.5, "Use an integer."), (True, "Use an integer."), ([2], "Use an integer."), ("2", "Use 2.")):
        if argument != "collect" or wrong != "2":
            assert refused(make, argument, wrong) == f"{name} must be an integer, got {wrong!r}. {fix}"


@pytest.mark.parametrize(("make", "argument", "name"), INTEGERS)
def test_integers_have_a_range(make: Callable[..., Any], argument: str, name: str) -> None:
    said = refused(make, argument, -1)
    assert re.match(rf"{re.escape(name)} must be (at least \d+|in \[\d+, \d+\]), got -1\. ", said)
    assert said.split(", got -1. ")[1].startswith(("Use ", "Omit it ", "The paper uses "))


def test_every_argument_of_a_public_class_is_in_a_list() -> None:
    listed = {
        (make if isinstance(make, type) else signature(make).return_annotation, argument)
        for make, argument, _ in (*INTEGERS, *NUMBERS, *BOOLS, *LISTS)
    }
    public = [getattr(td3_lightning, name) for name in td3_lightning.__all__ if name != "Policy"]
    built = [kind for kind in public if isinstance(kind, type) and not issubclass(kind, Exception)]
    arguments = [(kind, each) for kind in built for each in signature(kind).parameters.values()]
    assert len(arguments) > 100
    missing = {
        f"{kind.__name__}.{each.name}"
        for kind, each in arguments
        if re.search(r"\b(int|float|bool)\b", str(each.annotation)) and (kind, each.name) not in listed
    }
    assert missing == NOT_LISTED


@pytest.mark.parametrize(("make", "argument", "name"), NUMBERS)
def test_numbers(make: Callable[..., Any], argument: str, name: str) -> None:
    for good in (1, np.float32(0.5), np.float64(0.5), np.int64(1), np.array(0.5), torch.tensor(0.5)):
        make(**{argument: good})
    known = [signature(kind).parameters for kind in (TD3, TD7, Collector, ReplayData, Replay)]
    is_schedule = any("Schedule" in str(each[argument].annotation) for each in known if argument in each)
    kinds = "a number or a Schedule" if is_schedule else "a number"
    for wrong in ("0.5", True, [0.5], 1j):
        assert refused(make, argument, wrong).startswith(f"{name} must be {kinds}, got {wrong!r}. Use ")
    for wrong in (float("nan"), float("inf"), -float("inf"), 10**400):
        said = refused(make, argument, wrong)
        assert said.startswith(f"{name} must be ")
        assert f", got {wrong if wrong != 10**400 else '1000'}" in said
        assert len(said) < 300


@pytest.mark.parametrize(("make", "default"), [(td3, "0.005"), (td7, "1")])
def test_fix_of_tau_is_the_value_of_the_paper(make: Callable[..., Any], default: str) -> None:
    assert refused(make, "tau", 0) == f"tau must be in (0, 1], got 0.0. The paper uses {default}."


@pytest.mark.parametrize(("name", "paper"), [("policy_noise", "0.2"), ("noise_clip", "0.5")])
def test_target_noise_fits_into_float32(name: str, paper: str) -> None:
    assert refused(td3, name, 1e39) == f"{name} must be in [0, 1e+06], got 1e+39. The paper uses {paper}."


def test_integers_that_no_checkpoint_can_hold_are_refused() -> None:
    assert require_int("seed", 2**64 - 1) == 2**64 - 1
    expected = f"policy_freq must be an integer of at most 64 bits, got {2**64}. Use a smaller value."
    for wrong in (2**64, Constant(2**64)):
        assert refused(td3, "policy_freq", wrong) == expected
    assert refused(line, "begin", 10**400).startswith("Linear.begin must be an integer of at most 64 bits, got 1000")


@pytest.mark.parametrize(("make", "argument", "name"), BOOLS)
def test_bools(make: Callable[..., Any], argument: str, name: str) -> None:
    make(**{argument: np.bool_(False)})
    for wrong in ("false", 1, None):
        expected = f"{name} must be true or false, got {wrong!r}. Use true or false without quotes."
        assert refused(make, argument, wrong) == expected


@pytest.mark.parametrize(("make", "argument", "name"), LISTS)
def test_lists_of_integers(make: Callable[..., Any], argument: str, name: str) -> None:
    for good in ([8, 4], (8, 4), np.array([8, 4]), [np.int64(8), 4]):
        make(**{argument: good})
    assert refused(make, argument, [4, 8.0]) == f"{name}[1] must be an integer, got 8.0. Use 8."
    assert refused(make, argument, [0]) == f"{name}[0] must be at least 1, got 0. Use a larger value."
    for wrong in (8, "88"):
        assert refused(make, argument, wrong) == (
            f"{name} must be a list of integers, got {wrong!r}. Use a list, for example [256, 256]."
        )


def test_values_are_kept_as_plain_python() -> None:
    settings = {
        "policy_freq": np.int64(2),
        "tau": np.float32(0.5),
        "hidden_dims": np.array([8]),
        "actor_lr": np.int64(1),
    }
    kept = td3(**settings).hparams
    assert [type(kept[name]) for name in ("policy_freq", "tau", "hidden_dims")] == [int, float, list]
    assert type(kept["hidden_dims"][0]) is int
    assert type(kept["actor_lr"]) is float
    assert type(data(gamma=np.float32(0.5)).replay.gamma) is float


class Rude:
    """Raise in every conversion."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __float__(self) -> float:
        raise RuntimeError

    __index__ = __float__  # type: ignore[assignment]


def test_objects_that_raise_are_refused() -> None:
    for check in (require_int, require_float):
        with pytest.raises(UsageError, match=r"^tau must be an? (integer|number), got an object of type Rude\. "):
            check("tau", Rude())
    assert as_float(torch.empty((), device="meta")) is None


@pytest.mark.parametrize("make", [actor, critics])
@pytest.mark.parametrize("wrong", ["x", Trunk([4]), np.zeros(3)])
def test_encoder_of_a_network_is_a_module(make: Callable[..., Any], wrong: Any) -> None:
    assert re.fullmatch(r"encoder must be a module, got .*\. Use Trunk.*\.", refused(make, "encoder", wrong))


def test_intervals_are_named() -> None:
    cases: list[tuple[dict[str, float], float, str]] = [
        ({"least": 0, "most": 1}, 2, "in [0, 1], got 2. Use a smaller value."),
        ({"above": 0, "most": 1}, 0, "in (0, 1], got 0. Use a larger value."),
        ({"least": 0, "below": 1}, 1, "in [0, 1), got 1. Use a smaller value."),
        ({"above": 0}, 0.0, "greater than 0, got 0.0. Use a larger value."),
        ({"below": 0}, 0.0, "less than 0, got 0.0. Use a smaller value."),
        ({"most": 0}, 1, "at most 0, got 1. Use a smaller value."),
        ({}, float("inf"), "finite, got inf. Use a finite number."),
    ]
    for interval, value, expected in cases:
        with pytest.raises(UsageError) as caught:
            require_float("x", value, **interval)
        assert str(caught.value) == f"x must be {expected}"

"""Check search spaces: distributions, corners and error messages."""

from typing import Any

import optuna
import pytest

from td3_lightning.errors import UsageError
from td3_lightning.tuning.space import Space, flags

ENTRIES = {
    "model.actor_lr": {"low": 1e-5, "high": 1e-3, "log": True},
    "data.n_step": {"low": 1, "high": 5, "step": 2},
    "model.tau": {"low": 0.0, "high": 0.4, "step": 0.2},
    "model.hidden_dims": {"choices": [[64, 64], [256], [8, 8]]},
    "model.layer_norm": {"choices": [True, 1, None, "a"]},
}


@pytest.mark.parametrize(
    ("low", "high", "step"), [(0.1, 0.7, 0.1), (0.2, 0.3, 0.1), (1e-4, 1e-3, 1e-4), (0, 0.3, 0.1), (2, 8, 3)]
)
def test_steps_that_divide_their_range_are_accepted(low: float, high: float, step: float) -> None:
    (corner, *_, other) = Space({"a": {"low": low, "high": high, "step": step}}).corners()
    assert (corner, other) == ({"a": low}, {"a": high})


def test_trials_draw_all_values_of_their_ranges() -> None:
    study, space = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)), Space(ENTRIES)
    drawn = [space.suggest(study.ask()) for _ in range(60)]
    assert {each["data.n_step"] for each in drawn} == {1, 3, 5}
    assert {round(each["model.tau"], 9) for each in drawn} == {0.0, 0.2, 0.4}
    rates = [each["model.actor_lr"] for each in drawn]
    assert all(1e-5 <= rate <= 1e-3 for rate in rates)
    assert 20 < sum(rate < 1e-4 for rate in rates) < 40  # half of them, as the logarithm is uniform
    assert {str(each["model.hidden_dims"]) for each in drawn} == {"[64, 64]", "[256]", "[8, 8]"}
    assert {type(each["model.layer_norm"]) for each in drawn} == {bool, int, type(None), str}


def test_corners_have_every_end_and_every_choice() -> None:
    corners = Space({name: ENTRIES[name] for name in ("data.n_step", "model.hidden_dims")}).corners()
    assert [flags(corner) for corner in corners] == [
        ("--data.n_step=1", "--model.hidden_dims=[64, 64]"),
        ("--data.n_step=5", "--model.hidden_dims=[256]"),
        ("--data.n_step=1", "--model.hidden_dims=[8, 8]"),
    ]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "space must be a mapping of settings, got {}. Use model.actor_lr: {low"),
        *(
            ({name: {"choices": [1, 2]}}, f"space must be .* may differ between trials, got '{name}'. Remove it.")
            for name in ("name", "checkpoint.monitor", "checkpoint.mode", "trainer.default_root_dir")
        ),
        *(
            ({"a": entry}, "a must be {low, high} with optional log and step, or {choices} in the space, got ")
            for entry in (
                *(1, "x", {"low": 1}, {"low": 1, "high": 2, "lag": 1}, {"choices": []}, {"choices": [{1, 2}]}),
                *({"low": 3, "high": 2}, {"low": 0, "high": 2, "log": True}, {"low": 1, "high": 8, "step": 2}),
            )
        ),
    ],
)
def test_invalid_space_is_one_sentence(entries: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        Space(entries)
    assert "\n" not in str(error.value)

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


def test_settings_of_a_trial_are_kept_and_decoded() -> None:
    study, space = optuna.create_study(), Space(ENTRIES)
    trial = study.ask()
    settings = space.suggest(trial)
    assert space.suggest(trial) == settings
    assert space.decode(trial.params) == settings


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
        (
            {"name": {"choices": [1]}},
            "space must be a mapping of settings of the model, data, .* got 'name'. Remove it",
        ),
        ({"a": {"low": 1}}, "a must be {low, high} or {choices} in the space, got {'low': 1}. Use {low: 1, high: 5}."),
        ({"a": {"b": {"low": 1, "high": 2}}}, "a must be .* Write a.b: {low: 1, high: 5}."),
        ({"a": {"low": 1, "high": 2, "lag": 1}}, "a must be described by low, .* got 'lag'. Did you mean log?"),
        ({"a": {"low": 1, "choices": [2]}}, "a must be either a range or choices in the space"),
        ({"a": {"choices": []}}, r"a.choices must be a list of values, got \[\]."),
        ({"a": {"choices": [1, b"x"]}}, r"a.choices must be a list of numbers, .* got b'x'. Write the value as text."),
        ({"a": {"choices": [{1, 2}]}}, r"a.choices must be a list of numbers, .* got {1, 2}. Write the value as text."),
        ({"a": {"low": "x", "high": 2}}, "a.low must be a number, got 'x'. Use choices"),
        ({"a": {"low": float("nan"), "high": 2}}, "a.low must be a finite number, got nan. Use a finite number."),
        ({"a": {"low": 1, "high": float("inf")}}, "a.high must be finite, got inf."),
        ({"a": {"low": 3, "high": 2}}, "a.low must be at most high, which is 2, got 3"),
        ({"a": {"low": 0, "high": 2, "log": True}}, "a.low must be greater than 0 if log is true, got 0"),
        ({"a": {"low": 1, "high": 2, "log": "x"}}, "a.log must be true or false, got 'x'"),
        ({"a": {"low": 1, "high": 2, "step": 0}}, "a.step must be greater than 0 and used without log, got 0"),
        (
            {"a": {"low": 0.1, "high": 0.2, "step": 1e-300}},
            r"a.step must be between \(high - low\) / .*, got 1e-300. Use",
        ),
        (
            {"a": {"low": 1, "high": 2, "step": 5}},
            r"a.step must be between \(high - low\) / .*, got 5. Use another step",
        ),
        ({"a": {"low": 1, "high": 2, "step": 1, "log": True}}, "a.step must be .* got 'both'"),
        ({"a": {"low": 1, "high": 8, "step": 2}}, "a.step must be a divisor of high - low, got 2. Use another step"),
        ({"a": {"low": 0, "high": 1, "step": 0.3}}, "a.step must be a divisor of high - low, got 0.3. Use another"),
        *(
            ({name: {"choices": ["a", "b"]}}, f"space must be .* may differ between trials, got '{name}'. Use the flag")
            for name in ("checkpoint.monitor", "checkpoint.mode", "trainer.default_root_dir")
        ),
    ],
)
def test_invalid_space_is_one_sentence(entries: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        Space(entries)
    assert "\n" not in str(error.value)

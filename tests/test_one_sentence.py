"""Test that the check of error messages accepts the required form and rejects every other form."""

import pytest

from one_sentence import assert_one_sentence, refused
from td3_lightning import UsageError

GOOD = "tau must be in (0, 1], got 1.5. Use 0.005."


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        "tau must be in (0, 1], got 1.5 (the paper uses 0.005).",
        "tau must be in (0, 1], got 1.5. Reduce model.tau.",
    ],
)
def test_required_form_is_accepted(message: str) -> None:
    assert_one_sentence(ValueError(message), setting="tau", value="1.5")


@pytest.mark.parametrize(
    "message",
    [
        "rate must be in (0, 1], got 1.5. Use 0.005.",
        "taut must be in (0, 1], got 1.5. Use 0.005.",
        "tau must be in (0, 1]. Use 0.005.",
        "tau must be in (0, 1], got 11.5. Use 0.005.",
        "tau must be in (0, 1], got 1.55. Use 0.005.",
        "tau must be in (0, 1], got -1.5. Use 0.005.",
        "Use 0.005 for tau, got 1.5.",
        "tau must be in (0, 1], got 1.5.",
        "tau must be in (0, 1], got 1.5. Use 0.005",
        "tau must be in (0, 1],\ngot 1.5. Use 0.005.",
        f"tau must be in (0, 1], got 1.5. Use 0.005{' or another value' * 20}.",
        "Traceback (most recent call last): tau got 1.5. Use 0.005.",
    ],
)
def test_other_forms_are_rejected(message: str) -> None:
    with pytest.raises(AssertionError):
        assert_one_sentence(ValueError(message), setting="tau", value="1.5")


def test_given_fix_must_be_in_the_message() -> None:
    assert_one_sentence(ValueError(GOOD), setting="tau", value="1.5", fix="use 0.005")
    with pytest.raises(AssertionError):
        assert_one_sentence(ValueError(GOOD), setting="tau", value="1.5", fix="use 0.01")


@pytest.mark.parametrize("empty", [{"value": ""}, {"value": "1.5", "fix": ""}], ids=["value", "fix"])
def test_empty_text_is_rejected(empty: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match="in every message"):
        assert_one_sentence(ValueError(GOOD), setting="tau", **empty)


def test_other_exceptions_are_not_refusals() -> None:
    with refused("tau", "1.5"):
        raise UsageError(GOOD)
    with pytest.raises(ValueError, match="tau"), refused("tau", "1.5"):
        raise ValueError(GOOD)

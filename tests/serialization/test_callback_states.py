"""Check that every callback's state in a checkpoint is checked."""

from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.serialization.callback_states import check_callbacks, writes
from td3_lightning.serialization.values import InvalidValueError


class Counting(Callback):
    """Callback of a user with a check of its own."""

    @staticmethod
    def check_state(state: Any, name: str) -> None:
        if state != {"count": 1}:
            raise InvalidValueError(name, "a count of 1", state)


class DerivedCounting(Counting):
    """Subclass, which inherits the check."""


@pytest.mark.parametrize("callback", [Counting(), DerivedCounting()])
def test_check_of_a_users_callback_is_used(callback: Callback) -> None:
    check_callbacks({callback.state_key: {"count": 1}}, [callback], "")
    check_callbacks({}, [callback], "")
    with pytest.raises(InvalidValueError, match=r"^callbacks\.Counting must be a count of 1, got"):
        check_callbacks({callback.state_key: {"count": 2}}, [callback], "")


@pytest.mark.parametrize(("length", "is_own"), [(230, True), (300, False)])
def test_names_that_no_file_has_are_dropped(length: int, is_own: bool) -> None:  # matching them would take minutes
    assert writes(BestCheckpoint(dirpath="x"), f"steps_{'1' * length}_return_1.ckpt") is is_own

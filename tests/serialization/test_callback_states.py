"""Check that every callback's state in a checkpoint is checked."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

import td3_lightning
from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.serialization.callback_states import LIGHTNING, check_callbacks, writes
from td3_lightning.serialization.values import InvalidValueError


def stateful_callbacks() -> Iterator[type[Callback]]:
    """Yield the package's callbacks that save a state of their own."""
    for module in pkgutil.walk_packages(td3_lightning.__path__, "td3_lightning."):
        if not module.name.endswith("__main__"):
            for kind in vars(importlib.import_module(module.name)).values():
                own = isinstance(kind, type) and issubclass(kind, Callback) and kind.__module__ == module.name
                if own and "state_dict" in vars(kind):
                    yield kind


def test_every_stateful_callback_checks_its_state() -> None:
    kinds = set(stateful_callbacks())
    assert {"Collector", "PolicyCheckpoint", "LogRollback"} <= {kind.__name__ for kind in kinds}
    assert not [kind for kind in kinds if "check_state" not in vars(kind) and not issubclass(kind, tuple(LIGHTNING))]


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

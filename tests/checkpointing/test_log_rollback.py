"""The position of the log in a checkpoint."""

import pytest

from td3_lightning.serialization.callback_states import STATES
from td3_lightning.serialization.values import InvalidValueError


@pytest.mark.parametrize("position", [{}, {"rows": 3}, {"rows": -1, "events": {}}, [], "x"], ids=str)
def test_incomplete_position_is_refused(position: object) -> None:
    with pytest.raises(InvalidValueError, match="position"):
        STATES["LogRollback"]({"position": position}, "callbacks.LogRollback")


def test_complete_or_absent_position_is_accepted() -> None:
    STATES["LogRollback"]({"position": {"rows": 3, "events": {}}}, "callbacks.LogRollback")
    STATES["LogRollback"]({}, "callbacks.LogRollback")

"""The position of the log in a checkpoint."""

import pytest

from td3_lightning.checkpointing.log_rollback import LogRollback
from td3_lightning.serialization.values import InvalidValueError


@pytest.mark.parametrize("position", [{}, {"rows": 3}, {"rows": -1, "events": {}}, [], "x"], ids=str)
def test_incomplete_position_is_refused(position: object) -> None:
    with pytest.raises(InvalidValueError, match="position"):
        LogRollback.check_state({"position": position}, "callbacks.LogRollback")


def test_complete_or_absent_position_is_accepted() -> None:
    LogRollback.check_state({"position": {"rows": 3, "events": {}}}, "callbacks.LogRollback")
    LogRollback.check_state({}, "callbacks.LogRollback")

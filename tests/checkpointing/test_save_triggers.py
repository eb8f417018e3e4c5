"""Test the detection of checkpoints within epochs against Lightning's ModelCheckpoint."""

from datetime import timedelta
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.save_triggers import saves_within_epochs


@pytest.mark.parametrize("settings", [{"every_n_train_steps": 30}, {"train_time_interval": timedelta(seconds=1)}])
def test_steps_and_times_are_within_epochs(settings: dict[str, Any]) -> None:
    assert saves_within_epochs(ModelCheckpoint(**settings))


@pytest.mark.parametrize("callback", [ModelCheckpoint(), ModelCheckpoint(every_n_epochs=2), BestCheckpoint()])
def test_epochs_are_not_within_epochs(callback: ModelCheckpoint) -> None:
    assert not saves_within_epochs(callback)

"""Check the settings of a Trainer that are refused before training."""

from datetime import timedelta
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from td3_lightning import TD3, Collector, ReplayData, UsageError
from td3_lightning.checkpointing.best import BestCheckpoint


def fit(make_trainer: Any, *callbacks: ModelCheckpoint, **settings: Any) -> TD3:
    data = ReplayData("Pendulum-v1", steps_per_epoch=4, batch_size=4, capacity=100, eval_episodes=1)
    agent = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[4])
    trainer = make_trainer(callbacks=[Collector(4), *callbacks], enable_checkpointing=bool(callbacks), **settings)
    trainer.fit(agent, datamodule=data)
    return agent


@pytest.mark.parametrize("interval", [{"every_n_train_steps": 30}, {"train_time_interval": timedelta(seconds=1)}])
def test_model_checkpoint_within_epochs_is_refused(interval: Any, make_trainer: Any) -> None:
    with pytest.raises(UsageError, match="ModelCheckpoint must not have every_n_train_steps or"):
        fit(make_trainer, ModelCheckpoint(**interval))


def test_model_checkpoints_at_epochs_are_accepted(make_trainer: Any) -> None:
    callbacks = ModelCheckpoint(every_n_epochs=2), ModelCheckpoint(monitor="env_steps"), BestCheckpoint()
    assert fit(make_trainer, *callbacks).updates == 4


@pytest.mark.parametrize("batches", [2, 1.0])
def test_overfit_batches_is_refused(batches: float, make_trainer: Any) -> None:
    with pytest.raises(UsageError, match=rf"^trainer\.overfit_batches must be 0.*got {batches}\. Use trainer"):
        fit(make_trainer, overfit_batches=batches)

"""Check the settings of a Trainer that are refused before training."""

from datetime import timedelta
from typing import Any

import pytest
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from td3_lightning import TD3, Collector, ReplayData, UsageError


def fit(make_trainer: Any, *others: Callback, **settings: Any) -> TD3:
    data = ReplayData("Pendulum-v1", steps_per_epoch=4, batch_size=4, capacity=100, eval_episodes=1)
    agent = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[4])
    trainer = make_trainer(callbacks=[Collector(4), *others], **settings)
    trainer.fit(agent, datamodule=data)
    return agent


@pytest.mark.parametrize("interval", [{"every_n_train_steps": 30}, {"train_time_interval": timedelta(seconds=1)}])
def test_model_checkpoint_within_epochs_is_refused(interval: Any, make_trainer: Any) -> None:
    with pytest.raises(UsageError, match="ModelCheckpoint must not have every_n_train_steps or"):
        fit(make_trainer, ModelCheckpoint(**interval), enable_checkpointing=True)


@pytest.mark.parametrize(
    "callback",
    [
        callbacks.BackboneFinetuning(),
        callbacks.EMAWeightAveraging(),
        callbacks.GradientAccumulationScheduler({0: 2}),
        callbacks.LearningRateFinder(),
        callbacks.SpikeDetection(),
        callbacks.StochasticWeightAveraging(1e-3),
        callbacks.WeightAveraging(),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_unsupported_callbacks_end_the_run(callback: Callback, make_trainer: Any) -> None:
    """By Lightning's own errors, except for those that it accepts."""
    own = isinstance(callback, callbacks.WeightAveraging)
    with pytest.raises(UsageError if own else (MisconfigurationException, AttributeError, RuntimeError, KeyError)):
        fit(make_trainer, callback)

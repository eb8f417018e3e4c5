"""Check that a diverged run stops at once, names the cause, and keeps the last good checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from td3_lightning import TD3, Collector, ReplayData
from td3_lightning.errors import LearnerError
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from toys import Counter

NAN, INF = float("nan"), float("inf")


# In a run


class Poisons(Callback):
    """Set the last element of a parameter to NaN at a given update and hook."""

    def __init__(self, name: str, moment: str, updates: int) -> None:
        self.name, self.updates = name, updates
        setattr(self, moment, self._poison)

    def _poison(self, trainer: L.Trainer, module: TD3, *_: Any) -> None:
        if module.updates == self.updates:
            module.get_parameter(self.name).data.view(-1)[-1] = NAN


EPOCH = 6
LOSS, ACTION, WEIGHT = r"^(\w+_loss|q_mean) is nan at", "^The actor's action", "^A weight in"


@pytest.mark.parametrize(
    ("name", "moment", "updates", "found", "at"),
    [
        ("critics.layers.0.bias", "on_train_batch_start", 8, LOSS, 9),
        ("critics_target.layers.2.bias", "on_train_batch_start", 8, LOSS, 9),
        ("actor_target.layers.2.bias", "on_train_batch_start", 8, LOSS, 9),
        ("actor.layers.2.bias", "on_train_batch_start", 9, LOSS, 10),  # this update includes the actor
        ("actor.layers.2.bias", "on_train_batch_start", 8, ACTION, 9),
        ("critics.layers.0.bias", "on_validation_start", 12, WEIGHT, 12),
        ("critics.layers.0.bias", "on_validation_end", 12, WEIGHT, 12),
        ("actor.layers.0.bias", "on_train_epoch_end", 12, WEIGHT, 12),
    ],
)
def test_diverged_run_stops_before_act_evaluate_or_save(
    name: str, moment: str, updates: int, found: str, at: int, make_trainer: Callable[..., L.Trainer], tmp_path: Path
) -> None:
    data = ReplayData("toys/Counter-v0", steps_per_epoch=EPOCH, batch_size=4, capacity=100, eval_episodes=1)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    poison = Poisons(name, moment, updates)
    last = ModelCheckpoint(tmp_path, "last", enable_version_counter=False)
    callbacks = [poison, Collector(10), last]
    trainer = make_trainer(callbacks=callbacks, enable_checkpointing=True, max_epochs=5)
    Counter.log.clear()
    with pytest.raises(LearnerError, match=found) as caught:
        trainer.fit(module, datamodule=data)
    assert f"update {at}. The learner has diverged" in str(caught.value)
    # Actions, stored transitions and the checkpoint precede the divergence.
    actions = [action for event, action in Counter.log if event == "step"]
    assert np.isfinite(actions).all()
    assert data.replay.steps_stored == module.env_steps == 10 + at - (at % EPOCH != 0)
    evaluated = 2 if moment in ("on_validation_end", "on_train_epoch_end") else 1
    assert len(actions) == module.env_steps + evaluated * 5  # one episode per evaluation
    good = read_checkpoint(tmp_path / "last.ckpt")
    assert good["clocks"]["updates"] == EPOCH
    assert all(weight.isfinite().all() for weight in good["state_dict"].values())


def test_optimizer_state_is_checked_before_save(make_trainer: Any, tmp_path: Path) -> None:
    data = ReplayData("toys/Counter-v0", steps_per_epoch=EPOCH, batch_size=4, capacity=100, eval_episodes=1)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    trainer = make_trainer(callbacks=[Collector(10)])
    trainer.fit(module, datamodule=data)
    trainer.optimizers[0].state[module.actor.layers[0].bias]["exp_avg"][0] = NAN
    with pytest.raises(LearnerError, match=r"exp_avg of actor\.layers\.0\.bias is not finite after update 6"):
        trainer.save_checkpoint(tmp_path / "x.ckpt")
    assert not (tmp_path / "x.ckpt").exists()


class WithCost(TD3):
    """Return a plain number beside the losses."""

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {**super().training_step(batch, batch_idx), "cost": 0.5}


def test_a_number_beside_the_losses_is_logged_and_saved(make_trainer: Callable[..., L.Trainer], tmp_path: Path) -> None:
    data = ReplayData("toys/Counter-v0", steps_per_epoch=EPOCH, batch_size=4, capacity=100, eval_episodes=1)
    module = WithCost(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    trainer = make_trainer(callbacks=[collector := Collector(10)], log_every_n_steps=1)
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(tmp_path / "with_cost.ckpt")
    assert collector.state_dict()["ranks"][0]["losses"]["cost"] == 0.5

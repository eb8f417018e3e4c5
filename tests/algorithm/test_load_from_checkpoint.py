"""Arguments of `load_from_checkpoint`, and names of earlier versions."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from one_sentence import refused
from td3_lightning import TD3, Collector, Linear, Policy, ReplayData, Trunk, UsageError
from td3_lightning.checkpointing.io import AtomicCheckpointIO

OBS = np.linspace(-1, 1, 4, dtype=np.float32)


def saved(folder: Path, **hyperparameters: Any) -> Path:
    """Save an agent, with changed hyperparameters, as a checkpoint."""
    agent = TD3(4, [-1.0], [3.0], hidden_dims=[8], tau=0.02, encoder=Trunk([6]))
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, plugins=[AtomicCheckpointIO()])
    trainer.strategy.connect(agent)
    agent.trainer = trainer
    checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=True)
    checkpoint["hyper_parameters"] = {**checkpoint["hyper_parameters"], **hyperparameters}
    AtomicCheckpointIO().save_checkpoint(checkpoint, folder / "a.ckpt")
    return folder / "a.ckpt"


def test_arguments_override_the_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path)
    schedule = Linear(start=1, end=0, steps=9)
    stored, other = TD3.load_from_checkpoint(path), TD3.load_from_checkpoint(str(path), tau=0.04, actor_lr=schedule)
    assert [agent.hparams["tau"] for agent in (stored, other)] == [0.02, 0.04]
    assert isinstance(other.settings.actor_lr, Linear)
    np.testing.assert_array_equal(other.act(OBS), stored.act(OBS))


@pytest.mark.parametrize("name", ["action_low", "action_high"])
def test_other_action_bounds_are_refused(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    bounds = [3 * bound for bound in TD3.load_from_checkpoint(path).hparams[name]]
    with pytest.raises(UsageError, match=rf"^{name} must be .*, as in the checkpoint, got"):
        TD3.load_from_checkpoint(path, **{name: bounds})


class Bonus(TD3):
    """An agent of a user, with another argument."""

    def __init__(self, *args: Any, bonus: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bonus = bonus


def test_argument_of_a_subclass_can_be_given(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with pytest.raises(TypeError, match="bonus"):
        Bonus.load_from_checkpoint(path)
    assert Bonus.load_from_checkpoint(path, bonus=2.0).bonus == 2.0
    assert Bonus.load_from_checkpoint(saved(tmp_path, bonus=3.0)).bonus == 3.0


class Halved(TD3):
    """An agent of a user that computes other actions."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return 0.5 * super().forward(obs)


class OtherActor(TD3):
    """An agent of a user with another activation."""

    def build_networks(self) -> tuple[Any, Any]:
        actor, critics = super().build_networks()
        actor.layers[1] = torch.nn.ELU()
        return actor, critics


def trained(kind: type[TD3], make_trainer: Any, path: Path) -> TD3:
    data = ReplayData("Pendulum-v1", steps_per_epoch=2, batch_size=4, capacity=100, eval_episodes=1)
    agent = kind(data.obs_dim, data.action_low, data.action_high, hidden_dims=[8])
    trainer = make_trainer(callbacks=[Collector(warmup_steps=4)])
    trainer.fit(agent, datamodule=data)
    trainer.save_checkpoint(path)
    return agent


class Replaced(TD3):
    """An agent of a user that replaces a layer after the networks were built."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.actor.layers[1] = torch.nn.ELU()


def test_replaced_layer_is_not_lost(make_trainer: Any, tmp_path: Path) -> None:
    path, obs = tmp_path / "a.ckpt", np.ones(3, np.float32)
    agent = trained(Replaced, make_trainer, path)
    np.testing.assert_array_equal(Replaced.load_from_checkpoint(path).act(obs), agent.act(obs))
    for load in (TD3.load_from_checkpoint, Policy.load):
        with refused("The checkpoint's policy", "ELU", fix="Load it with the class that replaced layers"):
            load(path)


@pytest.mark.parametrize("kind", [Halved, OtherActor])
def test_other_policy_is_loaded_by_its_class_only(kind: type[TD3], make_trainer: Any, tmp_path: Path) -> None:
    path, obs = tmp_path / "a.ckpt", np.ones(3, np.float32)
    agent = trained(kind, make_trainer, path)
    np.testing.assert_array_equal(kind.load_from_checkpoint(path).act(obs), agent.act(obs))
    for load in (TD3.load_from_checkpoint, Policy.load):
        with refused(kind.__name__, "TD3", fix=f"Use {kind.__name__}.load_from_checkpoint"):
            load(path)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e300])
def test_observation_that_is_not_finite_is_refused(wrong: float, tmp_path: Path) -> None:
    agent = TD3.load_from_checkpoint(saved(tmp_path))
    with refused("obs", str(wrong)):
        agent.act(np.array([wrong, 0, 0, 0]))

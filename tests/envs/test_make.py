"""Check that the error names the cause if an environment cannot be made."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import lightning as L
import pytest
import torch

from td3_lightning import TD3, Collector, ReplayData, UsageError
from td3_lightning.envs.make import make
from toys import Counter, Seeded

gym.register("Elsewhere-v0", "no_such_module:Env")


def new_data(source: Any = "toys/Counter-v0", **kwargs: Any) -> ReplayData:
    return ReplayData(source, **{"steps_per_epoch": 20, "batch_size": 4, "capacity": 500, "eval_episodes": 2, **kwargs})


def message(source: Any, error: type[Exception], **settings: Any) -> str:
    with pytest.raises(error) as caught:
        make(source, settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Ids


@pytest.mark.parametrize(
    ("env_id", "fix"),
    [
        ("Pendulun-v1", "Use Pendulum-v1, or my_module:Pendulun-v1 if your own module my_module registers it."),
        ("AntBulletEnv-v0", "Use pybullet_envs_gymnasium:AntBulletEnv-v0 with the extra bullet."),
        ("FetchReach-v4", "Use gymnasium_robotics:FetchReach-v4 with the extra robotics."),
        ("dm_control/cheetah-run-v0", "Use shimmy:dm_control/cheetah-run-v0 with the extra robotics."),
    ],
)
def test_unknown_id_suggests_another_id(env_id: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gym.registry, env_id, raising=False)  # another test may have imported its package
    said = message(env_id, UsageError)
    assert said.startswith("env_id must be the id of a registered environment (")
    assert f", got {env_id!r}. " in said
    assert fix in said


# Packages


@pytest.mark.parametrize(
    ("env_id", "missing", "fix"),
    [
        ("pybullet_envs_gymnasium:Walker2DBulletEnv-v0", "pybullet_envs_gymnasium", "[bullet]'."),
        ("gymnasium_robotics:FetchReach-v4", "gymnasium_robotics", "[robotics]'."),
        ("Hopper-v5", "mujoco", "Use pip install -c constraints.txt -e '.[mujoco]'."),
        ("Elsewhere-v0", "no_such_module", "Install it, or use my_module:Id-v0 with the name of your own module."),
    ],
)
def test_missing_package_error_names_extra(
    env_id: str, missing: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):  # as if nothing had been imported
        if name.split(".")[0] == missing or name.startswith(("gymnasium.envs.mujoco", "gymnasium.envs.box2d")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    said = message(env_id, UsageError)
    assert said.startswith(f"{env_id} requires a package that cannot be imported (")
    assert said.endswith(fix)


# Constructors


# Functions


def fit(data: ReplayData, make_trainer: Callable[..., L.Trainer], **kwargs: Any) -> TD3:
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    trainer = make_trainer(callbacks=[Collector(10)], **kwargs)
    trainer.fit(module, datamodule=data)
    return module


@pytest.mark.parametrize(
    ("source", "name"),
    [(lambda: Seeded(), "Seeded"), (functools.partial(gym.make, "toys/Seeded-v0"), "toys/Seeded-v0")],
)
def test_function_trains_like_id(source: Any, name: str, make_trainer: Any) -> None:
    assert new_data(source).env_id == name
    weights = []
    for each in ("toys/Seeded-v0", source):
        L.seed_everything(1, verbose=False)
        weights.append(fit(new_data(each, num_envs=2), make_trainer).parameters())
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_training_environments_must_be_different_objects() -> None:
    shared = Counter()
    made = [Counter()]  # for the evaluation
    data = new_data(lambda: made.pop() if made else shared, num_envs=2)
    with pytest.raises(UsageError, match=r"must return a new environment at each call, got the same Counter twice\."):
        data.setup("fit")

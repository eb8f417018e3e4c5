"""Check that the error names the cause if an environment cannot be made."""

import functools
import re
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import lightning as L
import numpy as np
import pytest
import torch

from td3_lightning import TD3, Collector, ReplayData, UsageError
from td3_lightning.envs.make import make
from td3_lightning.errors import EnvError
from toys import Counter, Seeded


def stable(value: Any) -> str:
    """Return a test id without memory addresses, because test workers compare the ids."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


class Failing(Counter):
    """Raise the error in the class attribute in the constructor."""

    error: BaseException = ValueError()

    def __init__(self, port: int = 1) -> None:
        super().__init__()
        raise self.error


class Picky(Counter):
    """Require an argument."""

    def __init__(self, size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Confused(Counter):
    """Call another function with wrong arguments."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        int("1", bass=10)  # type: ignore[call-overload]


for kind in (Failing, Picky, Confused):
    gym.register(f"{kind.__name__}-v0", kind, disable_env_checker=True)
gym.register("Elsewhere-v0", "no_such_module:Env")
gym.register("Nameless-v0", "toys:NoSuchClass")


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
        ("Nope-v0", "Use "),
        ("Pendulun-v1", "Use Pendulum-v1."),
        ("Pendulum-v99", "Use Pendulum-v1."),
        ("toys:Pendulun-v1", "Use toys:Pendulum-v1."),
        ("no such name", "Use package:Id if a package registers it."),
        ("nowhere/Foo-v1", "Use package:Id if a package registers it."),
        ("", "Use package:Id if a package registers it."),
        ("one:two:three", "Use package:Id if a package registers it."),
        ("AntBulletEnv-v0", "Use pybullet_envs_gymnasium:AntBulletEnv-v0 with td3_lightning[bullet]."),
        ("FetchReach-v4", "Use gymnasium_robotics:FetchReach-v4 with td3_lightning[robotics]."),
        ("dm_control/cheetah-run-v0", "Use shimmy:dm_control/cheetah-run-v0 with td3_lightning[robotics]."),
    ],
)
def test_unknown_id_suggests_another_id(env_id: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gym.registry, env_id, raising=False)  # another test may have imported its package
    said = message(env_id, UsageError)
    assert said.startswith("env_id must be the id of a registered environment (")
    assert f", got {env_id!r}. {fix}" in said


def test_message_on_a_long_id_is_short() -> None:
    assert len(message("x" * 5000, UsageError)) < 400
    assert len(message("Bullet" * 5000, UsageError)) < 600


@pytest.mark.parametrize("source", [5, None, ["Pendulum-v1"]])
def test_env_id_must_be_id_or_function(source: Any) -> None:
    said = message(source, UsageError)
    fix = 'Use "Pendulum-v1" or lambda: MyEnv().'
    assert said == f"env_id must be an id or a function that returns an environment, got {source!r}. {fix}"


# Packages


@pytest.mark.parametrize(
    ("env_id", "missing", "fix"),
    [
        ("pybullet_envs_gymnasium:Walker2DBulletEnv-v0", "pybullet_envs_gymnasium", "Install td3_lightning[bullet]."),
        ("gymnasium_robotics:FetchReach-v4", "gymnasium_robotics", "Install td3_lightning[robotics]."),
        ("shimmy:dm_control/cheetah-run-v0", "shimmy", "Install td3_lightning[robotics]."),
        ("Hopper-v5", "mujoco", "Install td3_lightning[mujoco]."),
        ("LunarLanderContinuous-v3", "Box2D", "Install gymnasium[box2d]."),
        ("nopackage:Foo-v0", "nopackage", 'Install the package with "nopackage".'),
        ("Elsewhere-v0", "no_such_module", 'Install the package with "no_such_module".'),
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
    assert said.endswith(f"). {fix}")


@pytest.mark.parametrize(("env_id", "fix"), [("HalfCheetah-v3", "Use HalfCheetah-v5."), ("Ant-v2", "Use Ant-v5.")])
def test_environment_that_has_moved_names_its_successor(env_id: str, fix: str) -> None:
    assert message(env_id, UsageError).endswith(f"). {fix}")


# Arguments


@pytest.mark.parametrize(
    ("source", "settings", "why"),
    [
        ("toys/Counter-v0", {"nope": 1}, "got an unexpected keyword argument 'nope'; it accepts length, end, low, hig"),
        ("toys:Picky-v0", {"size": 1, "nope": 2}, "got an unexpected keyword argument 'nope'; it accepts length, end"),
        ("Picky-v0", {}, "missing a required argument: 'size'; it accepts size, kwargs"),
        ("Picky-v0", {"size": 1, "nope": 2}, "got an unexpected keyword argument 'nope'; it accepts length, end"),
        ("Hopper-v5", {"nope": 1}, "got an unexpected keyword argument 'nope'; it accepts model_path, frame_skip"),
        (lambda: Counter(), {"length": 3}, "got an unexpected keyword argument 'length'; it accepts none"),
        (functools.partial(Counter, 3), {"nope": 3}, "got an unexpected keyword argument 'nope'; it accepts end"),
    ],
    ids=stable,
)
def test_rejected_arguments_are_named(source: Any, settings: dict[str, Any], why: str) -> None:
    if source == "Hopper-v5":
        pytest.importorskip("mujoco")
    said = message(source, UsageError, **settings)
    assert f" does not accept the arguments {settings} ({why}" in said
    assert said.endswith("Change data.env_kwargs, data.train_kwargs, data.eval_kwargs or, for a record, env_kwargs.")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (100.0, "an integer, got 100.0. Use 100."),
        ("1e2", "an integer, got '1e2'. Use 100."),
        (0, "at least 1, got 0."),
    ],
)
def test_max_episode_steps_must_be_integer(steps: Any, said: str) -> None:
    said = f"max_episode_steps must be {said}"
    assert message("Pendulum-v1", UsageError, max_episode_steps=steps).startswith(said)


# Constructors


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("port is busy. Try again"), "ValueError: port is busy; Try again"),
        (AssertionError(), "AssertionError"),
        (TypeError("got an unexpected keyword argument"), "TypeError: got an unexpected keyword argument"),
        (gym.error.Error("two\nlines"), "Error: two lines"),
        (SystemExit(0), "SystemExit: 0"),
        (GeneratorExit(), "GeneratorExit"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("settings", [{}, {"port": 2}], ids=stable)
def test_constructor_error_does_not_blame_arguments(
    error: BaseException, text: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "error", error)
    with pytest.raises(EnvError) as caught:
        make("Failing-v0", settings)
    said = str(caught.value)
    assert said.startswith(f"Failing-v0 raised {text} ({__file__}, line ")
    arguments, fix = (f" with the arguments {settings}", " or its arguments") if settings else ("", "")
    assert said.endswith(f") in its constructor{arguments}. Correct the environment{fix}.")
    causes = [caught.value.__cause__, getattr(caught.value.__cause__, "__cause__", None)]
    assert error in causes  # with its traceback


def test_type_error_in_constructor_does_not_blame_arguments() -> None:
    said = message("Confused-v0", EnvError, size=2)
    assert said.startswith("Confused-v0 raised TypeError: ")
    assert "in its constructor with the arguments {'size': 2}" in said


def test_missing_class_does_not_blame_arguments() -> None:
    assert message("Nameless-v0", EnvError).startswith("Nameless-v0 raised AttributeError: module 'toys' has no attr")


def test_ctrl_c_in_constructor_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "error", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        make("Failing-v0", {})


# Functions


def fit(data: ReplayData, make_trainer: Callable[..., L.Trainer], **kwargs: Any) -> TD3:
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    trainer = make_trainer(callbacks=[Collector(10)], **kwargs)
    trainer.fit(module, datamodule=data)
    return module


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (lambda: Seeded(), "Seeded"),
        (Seeded, "Seeded"),
        (functools.partial(gym.make, "toys/Seeded-v0"), "toys/Seeded-v0"),
    ],
)
def test_function_trains_like_id(source: Any, name: str, make_trainer: Any) -> None:
    data = new_data(source, num_envs=2)
    assert data.env_id == name
    L.seed_everything(1, verbose=False)
    one = fit(new_data("toys/Seeded-v0", num_envs=2), make_trainer)
    L.seed_everything(1, verbose=False)
    other = fit(new_data(source, num_envs=2), make_trainer)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_function_run_resumes_from_plain_checkpoint(make_trainer: Any, tmp_path: Any) -> None:
    def train(*fits: int) -> TD3:
        L.seed_everything(1, verbose=False)
        path = None
        for max_epochs in fits:
            data = new_data(lambda: Seeded())
            module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
            trainer = make_trainer(callbacks=[Collector(10)], max_epochs=max_epochs)
            trainer.fit(module, datamodule=data, ckpt_path=path)
            path = tmp_path / "last.ckpt"
            trainer.save_checkpoint(path)
        return module

    whole, parts = train(3), train(1, 2, 3)
    torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_function_receives_keyword_arguments() -> None:
    data = new_data(Counter, env_kwargs={"length": 7}, train_kwargs={"length": 3})
    data.setup("fit")
    lengths = [env.unwrapped.length for env in (data.eval_env, data.envs.envs[0])]  # type: ignore[attr-defined]
    assert lengths == [7, 3]


def test_function_must_return_new_environments() -> None:
    env = Counter()
    data = new_data(lambda: env)
    with pytest.raises(UsageError, match=r"must return a new environment at each call, got the same Counter twice\."):
        data.setup("fit")


@pytest.mark.parametrize("num_envs", [2, 3])
def test_training_environments_must_be_different_objects(num_envs: int) -> None:
    shared = Counter()
    made = [Counter() for _ in range(num_envs - 1)]  # for the evaluation, and the first of three
    data = new_data(lambda: made.pop() if made else shared, num_envs=num_envs)
    with pytest.raises(UsageError, match=r"must return a new environment at each call, got the same Counter twice\."):
        data.setup("fit")


def test_function_must_return_an_environment() -> None:
    with pytest.raises(UsageError, match=r"must be a gymnasium.Env, got None. Return an environment from the function"):
        new_data(lambda: None)


# Wrappers


def broken(env: Any) -> Any:
    return env.no_such_attribute


def test_failing_wrapper_is_named() -> None:
    with pytest.raises(EnvError, match=r"^broken raised AttributeError: .*, line \d+\) around toys/Counter-v0\. Ch"):
        new_data(wrappers=[broken])


def test_wrapper_must_return_an_environment() -> None:
    with pytest.raises(UsageError, match=r"^the result of <lambda> must be a gymnasium.Env, got None. Return the wrap"):
        new_data(wrappers=[lambda env: None])


def test_lists_become_arrays_for_array_parameters() -> None:
    wrapper = functools.partial(gym.wrappers.RescaleObservation, min_obs=[-1.0, -2.0, -3.0], max_obs=[1.0, 2.0, 3.0])
    space: Any = new_data("Pendulum-v1", wrappers=[wrapper]).eval_env.observation_space
    np.testing.assert_array_equal(space.high, np.float32([1.0, 2.0, 3.0]))

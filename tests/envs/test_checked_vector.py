"""Check that vector environments store what single environments give, and what they refuse."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector

from one_sentence import refused
from run_comparison import SavesAtEnd
from td3_lightning import TD3, Collector, ReplayData, UsageError
from td3_lightning.cli.app import main
from td3_lightning.cli.settings import saved_settings
from td3_lightning.envs.checked import episode_seed
from td3_lightning.envs.checked_vector import SEEDS
from td3_lightning.errors import EnvError
from td3_lightning.replay.ring import RUNNING, TERMINATED, TRUNCATED
from td3_lightning.seeding import derive_seed
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from vector_toys import Mixed, faulty, sync

NUM_ENVS = 3
NONE = np.zeros((NUM_ENVS, 1), np.float32)
MAKERS: dict[str, Any] = {"function": (sync, {}), "make_vec": ("gymnasium:make_vec", {"vectorization_mode": "sync"})}
all_makers = pytest.mark.parametrize(("maker", "kwargs"), MAKERS.values(), ids=MAKERS)


def new_data(maker: Any, train_kwargs: Any = None, **kwargs: Any) -> ReplayData:
    settings = {"steps_per_epoch": 60, "batch_size": 4, "capacity": 3000, "eval_episodes": 1, "num_envs": NUM_ENVS}
    return ReplayData("toys/Mixed-v0", vector_env=maker, train_kwargs=train_kwargs, **(settings | kwargs))


def fit(
    data: ReplayData, make_trainer: Any, *callbacks: Any, ckpt_path: Any = None, epochs: int = 1, **model: Any
) -> TD3:
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), **model)
    callbacks = callbacks or (Collector(30),)
    make_trainer(callbacks=list(callbacks), max_epochs=epochs).fit(module, datamodule=data, ckpt_path=ckpt_path)
    return module


def rows(data: ReplayData, env: int) -> Any:
    ring = data.replay.rings[env]
    return ring.rows[: ring.written + ring.running]


def first_seed(steps_before: int = 0) -> int:
    return derive_seed("training environment", steps_before * NUM_ENVS) % (SEEDS - NUM_ENVS)


def stepped_singly(
    seed: int, actions: Any, next_seed: Callable[[int, int], int | None] = lambda seed, number: None
) -> tuple[Any, list[dict[str, float]]]:
    """Return the rows of one environment that is stepped with the actions of these rows, and its episodes' reports."""
    env = Mixed()
    obs, _ = env.reset(seed=seed)
    found, reports, total, ended = [], [], 0.0, False
    for action in actions:
        if ended:  # the row of the last observation of an episode
            found.append([*obs, 0, 0, RUNNING])
            obs, _ = env.reset(seed=next_seed(seed, len(reports)))
            total, ended = 0.0, False
            continue
        next_obs, reward, terminated, truncated, info = env.step(action)
        total, ended = total + reward, terminated or truncated
        found.append([*obs, *action, reward, TERMINATED if terminated else TRUNCATED if truncated else RUNNING])
        obs = next_obs
        if ended:
            own = {"steps": float(info["steps"]), "even": float(info["even"])}
            reports.append(own | {"return": total, "length": float(env.steps)})
    return np.array(found, np.float32), reports


# Transitions


@all_makers
def test_vector_env_stores_rows_of_single_envs(maker: Any, kwargs: Any, make_trainer: Any) -> None:
    data = new_data(maker, kwargs)
    module = fit(data, make_trainer)
    steps, ends = 0, set()
    for env in range(NUM_ENVS):
        stored = rows(data, env)[:-1]
        expected, reports = stepped_singly(first_seed() + env, stored[:, 3:4])
        np.testing.assert_array_equal(stored, expected)
        ends |= set(stored[:, -1])
        steps += len(stored) - len(reports) + (data.replay.rings[env].running == 0)
        last = rows(data, env)[-1]
        assert not last[3:].any()
    assert module.env_steps == data.replay.steps_stored
    assert 90 <= module.env_steps < 90 + NUM_ENVS
    assert steps == module.env_steps
    assert ends == {RUNNING, TERMINATED, TRUNCATED}
    assert module.updates == 60


@all_makers
def test_reports_are_those_of_single_envs(maker: Any, kwargs: Any) -> None:
    data = new_data(maker, kwargs)
    data.setup("fit")
    data.begin_episodes()
    found: list[list[dict[str, float]]] = [[] for _ in range(NUM_ENVS)]
    for _ in range(60):
        before = data.envs.episode_steps()
        step = data.envs.step(NONE)
        ended = np.flatnonzero(np.logical_or(step.terminated, step.truncated))
        for env, report in zip(ended, step.reports, strict=True):
            found[env].append(report)
            assert report["length"] == before[env] + 1
        after = data.envs.episode_steps()
        for env in range(NUM_ENVS):
            assert after[env] == (0 if env in ended else before[env] + (env in step.stepped))
    for env in range(NUM_ENVS):
        _, expected = stepped_singly(first_seed() + env, np.zeros((70, 1)))
        for report, own in zip(found[env], expected, strict=False):
            assert report["return"] == pytest.approx(own["return"])
            names = ("length", "steps", "even")
            assert {name: report[name] for name in names} == {name: own[name] for name in names}
        assert len(found[env]) > 6
    data.teardown("fit")


# Resuming


@pytest.mark.parametrize("makers", [(sync, sync), (sync, "sync")], ids=["vector", "from vector"])
def test_resumed_run_begins_new_episodes_and_warns(
    makers: Any, make_trainer: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data, again = (new_data(maker, None) for maker in makers)
    before = fit(data, make_trainer, Collector(30), SavesAtEnd())
    with caplog.at_level(logging.WARNING, logger="td3_lightning"):
        module = fit(again, make_trainer, ckpt_path=tmp_path / "last.ckpt", epochs=2)
    assert f"{NUM_ENVS} running episode(s) of toys/Mixed-v0 could not be restored and count as truncated" in caplog.text
    assert module.env_steps >= before.env_steps + 60 - NUM_ENVS
    assert module.env_steps == again.replay.steps_stored
    for env in range(NUM_ENVS):
        old, new = rows(data, env), rows(again, env)
        begin = len(old)
        np.testing.assert_array_equal(new[: begin - 1, :-1], old[:-1, :-1])
        assert new[begin - 2, -1] != RUNNING  # the last stored step ends its episode
        assert not new[begin - 1, 3:].any()
        seed = first_seed(before.env_steps) + env
        if makers[1] == "sync":
            seed = derive_seed("training environment", before.env_steps * NUM_ENVS + env)
        next_seeds = [episode_seed] if makers[1] == "sync" else []  # a vector environment resets without seeds
        expected, _ = stepped_singly(seed, new[begin:-1, 3:4], *next_seeds)
        np.testing.assert_array_equal(new[begin:-1], expected)


# Refusals


def no_mode(env_id: Any, num_envs: int) -> Any:
    env = sync(env_id, num_envs)
    del env.metadata["autoreset_mode"]
    return env


def one_more(env_id: Any, num_envs: int) -> Any:
    return sync(env_id, num_envs + 1)


def other_spaces(env_id: Any, num_envs: int, **kwargs: Any) -> Any:
    return sync("toys/Spaces-v0", num_envs, **kwargs)


@pytest.mark.parametrize(
    ("maker", "kwargs", "constraint", "got"),
    [
        (no_mode, {}, 'metadata["autoreset_mode"] of toys/Mixed-v0 of no_mode must be', "None"),
        (sync, {"mode": "SameStep"}, "must be AutoresetMode.NEXT_STEP, got", "SAME_STEP"),
        (one_more, {}, "data.num_envs of toys/Mixed-v0 of one_more must be 4", "3"),
        (other_spaces, {"action": "2-d"}, "must have the same actions in training", "(2, 2)"),
    ],
)
def test_unsuitable_vector_env_is_refused(maker: Any, kwargs: Any, constraint: str, got: str) -> None:
    data = new_data(maker, kwargs)
    with pytest.raises(UsageError) as error:
        data.setup("fit")
    assert constraint in str(error.value)
    assert got in str(error.value)


def test_running_statistics_of_a_vector_env_are_refused() -> None:
    wrapper: Any = vector.NormalizeObservation
    data = new_data(lambda *args, **kwargs: vector.ClipReward(wrapper(sync(*args, **kwargs)), -1, 1))
    with refused("data.vector_env must not update running statistics", wrapper.__name__, fix="--model.normalize"):
        data.setup("fit")


@pytest.mark.parametrize("name", ["lockstep", "nothing:make", "gymnasium:make_vectors"])
def test_vector_env_must_name_a_function(name: Any) -> None:
    with refused("data.vector_env must be sync, async, overlapped, envpool or", repr(name), fix="Use sync, or"):
        new_data(name)


# Faults


def at(place: Any, value: float) -> Any:
    """Return a function that changes one number of an array."""

    def change(array: Any) -> Any:
        array = np.array(array)
        array[place] = value
        return array

    return change


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (0, at((1, 2), np.nan), "observations that are not finite, nan at index 2 in environment 1"),
        (0, lambda obs: obs[:2], "observations of shape (2, 3) and type float32, expected (3, 3)"),
        (0, lambda obs: [[1, 2, 3], [1], [1]], "raised ValueError"),
        (1, at(2, np.inf), "rewards that are not finite, inf in environment 2"),
        (3, lambda ends: bool(ends[0]), "returned ends of shape () and type bool, expected (3,)"),
    ],
)
def test_invalid_results_end_the_run(field: int, value: Any, message: str) -> None:
    data = new_data(faulty, {"field": field, "value": value})
    data.setup("fit")
    data.begin_episodes()
    with pytest.raises(EnvError) as error:
        list(map(data.envs.step, [NONE] * 9))
    said = str(error.value)
    assert message in said
    assert said.startswith("toys/Mixed-v0 of faulty ")
    assert f"with seed {first_seed()}. This step is not stored." in said
    data.teardown("fit")


def test_wrong_autoreset_mode_is_refused() -> None:
    """An environment whose episodes take one step ends in the step that must reset it."""

    def wrong(env_id: Any, num_envs: int) -> Any:
        env = sync("toys/Counter-v0", num_envs, mode="SameStep", length=1)
        env.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        return env

    data = new_data(wrong)
    data.setup("fit")
    data.begin_episodes()
    data.envs.step(NONE)
    with pytest.raises(EnvError, match=r"in two consecutive steps.*Correct metadata\[\"autoreset_mode\"\]"):
        data.envs.step(NONE)


# EnvPool


def test_envpool_rows_are_those_of_a_pool(make_trainer: Any) -> None:
    envpool = pytest.importorskip("envpool")
    data = ReplayData(
        "Pendulum-v1", vector_env="envpool", num_envs=4, batch_size=4, steps_per_epoch=200, eval_episodes=1,
        train_kwargs={"max_episode_steps": 30}, capacity=4000,
    )  # fmt: skip
    module = fit(data, make_trainer, Collector(400))
    assert module.env_steps == data.replay.steps_stored
    seed = derive_seed("training environment", 0) % (SEEDS - 4)
    pool = envpool.make_gymnasium("Pendulum-v1", num_envs=4, seed=seed, max_episode_steps=30)
    obs, _ = pool.reset()
    stored = np.stack([rows(data, env) for env in range(4)])
    for place in range(stored.shape[1] - 1):
        np.testing.assert_array_equal(stored[:, place, :3], obs)
        obs, reward, terminated, truncated, _ = pool.step(stored[:, place, 3:4])
        is_last = place % 31 == 30  # the row of the last observation
        np.testing.assert_array_equal(stored[:, place, 4], reward)
        assert set(stored[:, place, 5]) == {TRUNCATED if place % 31 == 29 else RUNNING}
        assert truncated.all() == (place % 31 == 29)
        assert not terminated.any()
        assert not (is_last and reward.any())
    assert stored.shape[1] > 150
    assert torch.isfinite(torch.from_numpy(stored)).all()


# Command line


def test_only_fit_imports_the_function(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that names the function is tested without its configuration, but not resumed with another one."""
    monkeypatch.chdir(tmp_path)
    words = [
        *("--data.env_id", "Pendulum-v1", "--data.num_envs", "2", "--data.steps_per_epoch", "4"),
        *("--data.batch_size", "4", "--data.eval_episodes", "1", "--collector.warmup_steps", "4"),
        *("--trainer.max_epochs", "1", "--trainer.enable_progress_bar", "false", "--name", "vector"),
    ]
    assert main(["fit", *words, "--data.vector_env", "vector_toys:sync"]) == 0
    last = "lightning_logs/vector/version_0/checkpoints/last.ckpt"
    monkeypatch.setattr("vector_toys.sync", None)
    assert main(["test", "--ckpt_path", last, "--data.test_episodes", "1"]) == 0
    with pytest.raises(UsageError, match=r'names "vector_toys:sync" in data\.vector_env, which may be code'):
        saved_settings(read_checkpoint(last), last, [], [], "fit")

"""Environments whose episodes depend on earlier ones, or on unseeded generators, are not restored in silence."""

import logging
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recorded
from reset_toys import Global, GlobalTorch, Heavy, Hidden, Late, OwnInstance, OwnModule, SeedsGlobal
from run_comparison import SavesAtEnd
from td3_lightning import TD3, Collector, Dataset, ReplayData
from td3_lightning.envs.checked import RestorableEnv
from td3_lightning.envs.make import make_wrapped
from td3_lightning.envs.vector_env import EnvList, TrainingVectorEnv
from td3_lightning.envs.workers import Workers
from tests.envs.test_vector_env import through_a_file
from toys import Seeded

ACTION = np.ones(1, np.float32)


def seed_process(seed: int) -> None:
    """Seed all generators as at the start of a process."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    OwnModule.generator = np.random.default_rng(0)


def played(kind: Any, episodes: int, steps: int) -> RestorableEnv:
    """Return an environment in a new process after complete episodes and some steps."""
    seed_process(0)
    env = RestorableEnv(kind())
    env.reset(seed=5)
    for _ in range(episodes):
        while not any(env.step(ACTION)[2:4]):
            pass
        env.reset()
    for _ in range(steps):
        env.step(ACTION)
    return env


def rest_of(env: RestorableEnv) -> list[Any]:
    """Return the results of the rest of this episode, and of the next one."""
    results: list[Any] = []
    for _ in range(2):
        ended = False
        while not ended:
            obs, *others, _ = env.step(ACTION)
            results.append((obs.tolist(), *others))
            ended = any(others[1:])
        results.append(env.reset()[0].tolist())
    return results


def restored(kind: Any, state: dict[str, Any], seed: int = 7) -> tuple[RestorableEnv, str]:
    """Return the environment of a new process that has restored a state, and the difference that it found."""
    seed_process(seed)  # by default, the new process has drawn other numbers than the first one before the resume
    env = RestorableEnv(kind())
    env.saved = through_a_file(state)
    return env, env.restore()[0]


KINDS = (Seeded, Heavy, Global, GlobalTorch, Hidden, Late, SeedsGlobal, OwnInstance, OwnModule)
LIBRARY = {Global: "Python", Hidden: "NumPy", GlobalTorch: "PyTorch"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("episodes", "steps"), [(0, 0), (0, 3), (1, 0), (3, 3)])
@pytest.mark.parametrize("seed", [0, 7])
def test_environment_is_restored_or_named(kind: Any, episodes: int, steps: int, seed: int) -> None:
    env = played(kind, episodes, steps)
    state, rest = env.state(), rest_of(env)
    other, difference = restored(kind, state, seed)
    if kind in (Seeded, SeedsGlobal, OwnInstance):
        assert not difference
    if seed and (kind is Hidden or (kind in LIBRARY and episodes + steps)):
        assert difference == f"{kind.__name__} draws random numbers from the global generator of {LIBRARY[kind]}"
    if kind in (Heavy, OwnModule) and episodes > 1:
        assert difference.startswith(f"{kind.__name__} does not repeat its episode with seed ")
        assert restored(kind, other.state())[1] == difference  # the next stop finds it again
    if difference:
        assert other.steps == 0
    else:
        assert rest_of(other) == rest


def test_global_generators_continue_after_resume() -> None:
    state = played(Seeded, 2, 1).state()
    draws = []
    for _ in range(2):
        draws.append([random.random(), random.gauss(), np.random.random(), np.random.normal(), torch.rand(3).tolist()])  # noqa: NPY002
        restored(Seeded, state)
    assert draws[0] == draws[1]


@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("kind", [Seeded, Heavy, Global])
def test_each_of_several_environments_is_compared(kind: Any, workers: bool) -> None:
    make = partial(make_wrapped, kind, {}, ())
    states: list[Any] = []
    for seed in (0, 7):
        seed_process(seed)
        envs = TrainingVectorEnv(Workers(make, [seed, seed + 1], "Toy") if workers else EnvList(make, 2))
        if states:
            lost = envs.load_state_dict(through_a_file(states[0]))
        else:
            envs.reset(3)
            for _ in range(30):
                envs.step(np.ones((2, 1), np.float32))
        states.append(envs.state_dict())
        envs.close()
    assert lost == ([] if kind is Seeded else [0, 1])
    said = {Heavy: "does not repeat its", Global: "draws random numbers from the global generator of Python"}
    expected = f"Environment 0 of {kind.__name__} {said[kind]}" if lost else ""
    assert envs.difference[: len(expected) or None] == expected


@pytest.mark.parametrize("kind", [Seeded, Heavy, Global])
@pytest.mark.parametrize("offline", [False, True])
def test_resumed_run_warns_in_one_sentence(
    kind: Any, offline: bool, make_trainer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Offline, only the evaluations use the environment."""
    if offline:
        pytest.importorskip("minari")
        recorded.write(tmp_path / "datasets", bounds=(1.5,))
    for epochs in (2, 3):
        seed_process(0)
        dataset = Dataset("recorded-v0", offline=True) if offline else None
        bounds = {"low": (-1.5,), "high": (1.5,)}
        data = ReplayData(kind, bounds, batch_size=4, capacity=500, steps_per_epoch=20, dataset=dataset)
        module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[4])
        with caplog.at_level(logging.WARNING, logger="td3_lightning"):
            last = tmp_path / "last.ckpt"
            trainer = make_trainer(callbacks=[Collector(10), SavesAtEnd()], max_epochs=epochs)
            trainer.fit(module, datamodule=data, ckpt_path=last if epochs == 3 else None)
    said = [record.getMessage() for record in caplog.records if "uninterrupted" in record.getMessage()]
    assert len(said) == (kind is not Seeded)
    if said:
        what, since = "1 running episode(s) of {} could not be restored and count as truncated, because", "step 50"
        if offline:
            what, since = "The evaluations of {} do not continue exactly, because", "the resume"
        assert said[0].startswith(what.format(kind.__name__))
        assert f" From {since} on, the results differ from those of an uninterrupted run. Draw random" in said[0]

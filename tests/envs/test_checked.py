"""Check the errors of failing environments, and that runs save valid data and resume."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium as gym
import lightning as L
import numpy as np
import pytest
import torch

from td3_lightning import TD3, Collector, ReplayData
from td3_lightning.checkpointing.interruption import SaveOnFailure, StopOnSignal
from td3_lightning.checkpointing.last import LastCheckpoint
from td3_lightning.envs.checked import RestorableEnv, episode_seed
from td3_lightning.envs.episode import Episode
from td3_lightning.envs.vector_env import EnvList, TrainingVectorEnv
from td3_lightning.errors import EnvError
from td3_lightning.seeding import derive_seed
from toys import Counter, Seeded

LENGTH = 5  # steps of an episode
NAN, INF = float("nan"), float("inf")


def raising(*_: Any) -> Any:
    raise ZeroDivisionError("a wheel\n came off. It rolls")


def throw(error: BaseException) -> Any:
    raise error


# What the environment makes of its good answer, and what is said of it.
STEP_FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (raising, r"raised ZeroDivisionError: a wheel came off; It rolls \(.*test_checked.py, line \d+\)"),
    "nan": (lambda obs, *rest: (obs * [1, NAN, 1], *rest), "observation that is not finite, nan at index 1"),
    "too large": (lambda obs, *rest: (np.array([0, 0, -1e39]), *rest), "not finite, -1e[+]39 at index 2"),
    "half inf": (lambda obs, *rest: (np.float16([0, INF, 0]), *rest), "not finite, inf at index 1"),
    "shape": (lambda obs, *rest: (obs[None], *rest), r"of shape \(1, 3\) and type float32, expected Box\(.*\(3,\)"),
    "reward nan": (lambda obs, reward, *rest: (obs, NAN, *rest), "reward that is not finite, nan"),
    "reward none": (lambda obs, reward, *rest: (obs, None, *rest), "reward of None, expected one number,"),
}
RESET_FAULTS = {
    **{name: STEP_FAULTS[name] for name in ("raises", "nan")},
}
# Odd, but it can be meant in one way only.
FINE: list[Callable[..., Any]] = [
    lambda obs, *rest: (obs.tolist(), *rest),
    lambda obs, reward, *rest: (obs.astype(np.int64), np.float32(reward), *rest),
    lambda obs, reward, *rest: (obs, torch.tensor(reward), *rest),
    lambda obs, *rest: (torch.tensor(obs), *rest),
    lambda obs, reward, end, *rest: (obs, reward, np.bool_(end), *rest),
]


class Faulty(Counter):
    """Corrupt the result of one step of one episode. Step 0 is the reset. All instances share the counters."""

    spoil: Callable[..., Any] | None = None
    where = (0, 0)

    def reset(self, **kwargs: Any) -> Any:
        return self._spoilt(*super().reset(**kwargs))

    def step(self, action: Any) -> Any:
        return self._spoilt(*super().step(action))

    def _spoilt(self, *answer: Any) -> Any:
        spoil = type(self).spoil
        return spoil(*answer) if spoil and (self.episode + 1, self.steps) == self.where else answer


gym.register("Faulty-v0", Faulty, disable_env_checker=True)


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Choose which result every Faulty corrupts."""

    def set_up(how: Callable[..., Any] | None, episode: int = 0, step: int = 0) -> None:
        monkeypatch.setattr(Faulty, "spoil", how and staticmethod(how))
        monkeypatch.setattr(Faulty, "where", (episode, step))

    return set_up


# The sentence.


def check_sentence(sentence: str, begin: str, said: str, where: str) -> None:
    assert sentence.startswith(begin)
    assert re.search(said, sentence), sentence
    assert where in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(("num_envs", "step"), [(1, 1), (3, LENGTH)])
@pytest.mark.parametrize("fault", STEP_FAULTS)
def test_invalid_step_raises_env_error(fault: str, step: int, num_envs: int, spoil: Any) -> None:
    how, said = STEP_FAULTS[fault]
    envs = TrainingVectorEnv(EnvList(lambda: Faulty(length=LENGTH), num_envs))
    envs.reset()
    for _ in range(LENGTH + step - 1):
        envs.step(np.zeros((num_envs, 1), np.float32))
    type(envs.envs[-1].unwrapped).spoil = None
    spoil(how, 2, step)
    for env in envs.envs[:-1]:  # the last one caused the error
        env.unwrapped.episode += 7
    with pytest.raises(EnvError) as caught:
        envs.step(np.zeros((num_envs, 1), np.float32))
    seed = derive_seed("training environment", num_envs - 1)
    where = f"at step {step} of the episode with seed {episode_seed(seed, 1)}. This step is not stored. "
    check_sentence(str(caught.value), f"Environment {num_envs - 1} of Faulty ", said, where)


@pytest.mark.parametrize("episode", [1, 3])
@pytest.mark.parametrize("fault", RESET_FAULTS)
def test_invalid_reset_raises_env_error(fault: str, episode: int, spoil: Any) -> None:
    how, said = RESET_FAULTS[fault]
    spoil(how, episode, 0)
    envs = TrainingVectorEnv(EnvList(lambda: Faulty(length=LENGTH), 2))

    def play() -> None:
        envs.reset()
        for _ in range(2 * LENGTH):
            envs.step(np.zeros((2, 1), np.float32))

    with pytest.raises(EnvError) as caught:
        play()
    first = derive_seed("training environment")
    seed = first if episode == 1 else episode_seed(first, episode - 1)
    where = f"at the reset of the episode with seed {seed}. "
    check_sentence(str(caught.value), "Environment 0 of Faulty ", said, where)


@pytest.mark.parametrize("how", FINE)
def test_unambiguous_results_are_accepted(how: Callable[..., Any], spoil: Any) -> None:
    spoil(None)
    wanted = Episode(Faulty(length=LENGTH), 1).play(lambda _: 0.0)
    spoil(how, 1, 3)
    assert Episode(Faulty(length=LENGTH), 1).play(lambda _: 0.0) == wanted


@pytest.mark.parametrize("kind", [">f4", "longdouble"])
def test_numbers_that_pytorch_lacks_are_converted(kind: str, make_trainer: Any) -> None:
    class Foreign(Seeded):
        def _obs(self) -> Any:
            return (100 * super()._obs()).astype(kind)

    data, other = (ReplayData(Foreign, batch_size=4, steps_per_epoch=21, eval_episodes=1) for _ in range(2))
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    trainer = make_trainer(callbacks=[Collector(10)])
    trainer.fit(module, datamodule=data)
    assert trainer.callback_metrics["eval/length_mean"] > 3
    (rank,) = data.state_dict()["ranks"]
    assert len(rank["envs"]["episodes"][0]["actions"]) > 0
    other.setup("fit")
    assert other.envs.load_state_dict(rank["envs"]) == []  # no episode is lost
    np.testing.assert_array_equal(other.envs.obs[0], data.replay.rings[0].rows[data.replay.rings[0].cursor, :3])
    other.teardown("fit")


# In a run.


def new_run(
    folder: Path, num_envs: int, make_trainer: Callable[..., L.Trainer], env_id: str = "Faulty-v0", **changed: Any
) -> tuple[TD3, ReplayData, L.Trainer]:
    L.seed_everything(1, verbose=False)
    settings = {"steps_per_epoch": 12, "batch_size": 4, "capacity": 999 if changed else 99, "eval_episodes": 2}
    data = ReplayData(env_id, {"length": LENGTH}, num_envs=num_envs, **(settings | changed))
    callbacks = [SaveOnFailure(), Collector(12), StopOnSignal(), LastCheckpoint(folder)]
    trainer = make_trainer(callbacks=callbacks, enable_checkpointing=True, max_epochs=3)
    return TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,)), data, trainer


@pytest.mark.parametrize(
    # Episode and step of the failure. The first two episodes are the warm-up.
    ("num_envs", "episode", "step", "env_steps"),
    [
        *((1, 1, 1, 0), (1, 2, 5, 9), (1, 3, 4, 13), (1, 6, 0, 24), (1, 8, 1, 35), (3, 1, 2, 3), (3, 2, 3, 21)),
    ],
)
def test_run_resumes_after_environment_failure(
    num_envs: int, episode: int, step: int, env_steps: int, make_trainer: Any, spoil: Any, tmp_path: Path
) -> None:
    spoil(raising, episode, step)
    module, data, trainer = new_run(tmp_path, num_envs, make_trainer)
    with pytest.raises(EnvError, match=r"^Environment 0 of Faulty-v0 raised"):
        trainer.fit(module, datamodule=data)
    last = tmp_path / "last.ckpt"
    assert last.exists() == (env_steps > 0)
    spoil(None)  # fixed
    again, more, trainer = new_run(tmp_path, num_envs, make_trainer)
    trainer.fit(again, datamodule=more, ckpt_path=last if env_steps else None)
    assert again.updates == 36
    assert abs(again.env_steps - 48) < num_envs
    assert sum(ring.index.count for ring in more.replay.rings) == again.env_steps  # every step is a transition
    for ring in more.replay.rings:
        ends = ring.rows[: ring.cursor, -1]
        assert ends.astype(bool).sum() >= 3
        assert (ends == 2).sum() == (env_steps > 0 and step != 1 and env_steps // num_envs % LENGTH != 0)


@pytest.mark.parametrize("step", [1, 4])
def test_run_resumes_after_several_failures(step: int, make_trainer: Any, spoil: Any, tmp_path: Path) -> None:
    """The step after an update fails, and the first step of the resumed run fails again."""
    last = tmp_path / "last.ckpt"
    for where in ((5, step), (1, 1), (1, 1)):
        spoil(raising, *where)
        module, data, trainer = new_run(tmp_path, 1, make_trainer)
        data.eval_env.unwrapped.where = (0, 0)  # type: ignore[attr-defined]
        with pytest.raises(EnvError, match="raised"):
            trainer.fit(module, datamodule=data, ckpt_path=last if last.exists() else None)
        assert trainer.callbacks[1].updates_ahead == 1  # type: ignore[attr-defined]  # one step is owed
    updates = module.updates
    spoil(None)
    module, data, trainer = new_run(tmp_path, 1, make_trainer)
    trainer.fit(module, datamodule=data, ckpt_path=last)
    assert updates < module.updates == 36
    assert module.env_steps == 48


class Evaluated(L.Callback):
    """Record `env_steps` at each evaluation."""

    def __init__(self) -> None:
        self.at: list[int] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.at.append(pl_module.env_steps)


@pytest.mark.parametrize(
    # The step after the last update of an epoch, and the next step, with an evaluation in every or every second epoch.
    ("step", "every", "before", "after"),
    [(1, 1, [24], [36, 48]), (2, 1, [24, 36], [48]), (1, 2, [], [36])],
)
def test_due_evaluation_runs_first_after_step_failure(
    step: int, every: int, before: list[int], after: list[int], make_trainer: Any, spoil: Any, tmp_path: Path
) -> None:
    evaluated = []
    for ckpt_path in (None, tmp_path / "last.ckpt"):
        spoil(None if ckpt_path else raising, 8, step)
        module, data, trainer = new_run(tmp_path, 1, make_trainer)
        trainer.check_val_every_n_epoch = every
        evaluated.append(Evaluated())
        trainer.callbacks.append(evaluated[-1])  # type: ignore[attr-defined]
        with nullcontext() if ckpt_path else pytest.raises(EnvError):
            trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    assert [each.at for each in evaluated] == [before, after]
    assert module.updates == 36


class FaultySeeded(Faulty, Seeded):
    """Fail like Faulty, with episodes that can be restored."""


gym.register("FaultySeeded-v0", FaultySeeded, disable_env_checker=True)


def test_floats_in_a_space_of_integers_are_refused() -> None:
    """Gymnasium's shared memory would truncate them in workers, and only there."""
    env = Counter()
    env.observation_space = gym.spaces.Box(-9, 9, (3,), np.int32)
    with pytest.raises(EnvError, match=r"of shape \(3,\) and type float32, expected Box\(.*int32\)"):
        RestorableEnv(env).reset(seed=1)


@pytest.mark.parametrize(("episode", "step"), [(1, 0), (2, 3)])
def test_failed_evaluation_restarts(episode: int, step: int, make_trainer: Any, spoil: Any, tmp_path: Path) -> None:
    """The run loses nothing, so its results are bit-identical."""
    spoil(None)
    whole, data, trainer = new_run(tmp_path / "whole", 1, make_trainer, "FaultySeeded-v0")
    trainer.fit(whole, datamodule=data)
    spoil(raising)
    module, data, trainer = new_run(tmp_path, 1, make_trainer, "FaultySeeded-v0")
    data.eval_env.unwrapped.where = (episode, step)  # type: ignore[attr-defined]
    seed = data.eval_seeds[(episode - 1) % 2]
    with pytest.raises(EnvError, match=rf"^FaultySeeded-v0 raised .* of the episode with seed {seed}\."):
        trainer.fit(module, datamodule=data)
    spoil(None)
    again, data, trainer = new_run(tmp_path, 1, make_trainer, "FaultySeeded-v0")
    trainer.fit(again, datamodule=data, ckpt_path=tmp_path / "last.ckpt")
    assert again.env_steps == whole.env_steps
    assert all(torch.equal(one, other) for one, other in zip(again.parameters(), whole.parameters(), strict=True))


def test_failure_during_resume_keeps_checkpoint(make_trainer: Any, spoil: Any, tmp_path: Path) -> None:
    spoil(None)
    module, data, trainer = new_run(tmp_path, 1, make_trainer, "FaultySeeded-v0")
    trainer.fit(module, datamodule=data)
    before = (tmp_path / "last.ckpt").read_bytes()
    spoil(raising, 1, 1)  # while the running episode is replayed
    module, data, trainer = new_run(tmp_path, 1, make_trainer, "FaultySeeded-v0")
    with pytest.raises(EnvError):
        trainer.fit(module, datamodule=data, ckpt_path=tmp_path / "last.ckpt")
    assert (tmp_path / "last.ckpt").read_bytes() == before

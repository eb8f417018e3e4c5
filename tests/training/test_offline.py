"""Runs with a dataset: filled replay buffers, shares of a batch, and runs without environment steps."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

import recorded
from one_sentence import refused
from td3_lightning import (
    TD3,
    Collector,
    Dataset,
    Linear,
    Pixels,
    PolicyCheckpoint,
    ReplayData,
)
from td3_lightning.algorithm.td7 import TD7
from td3_lightning.checkpointing.log_rollback import LogRollback
from td3_lightning.envs.vector_env import TrainingVectorEnv
from td3_lightning.replay.episodes import RecordedEpisode
from td3_lightning.reporting.learning_curve import write_curve
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.training.recorded_policy import record_episodes

pytest.importorskip("minari")

Fit = Callable[..., tuple[Any, ReplayData, L.Trainer]]
SMALL: dict[str, Any] = {"env_kwargs": {"max_episode_steps": 9}, "batch_size": 8, "eval_episodes": 1}


@pytest.fixture
def fit(tmp_path: Path, make_trainer: Callable[..., L.Trainer]) -> Fit:
    """Return a function that trains on the recorded dataset."""
    recorded.write(tmp_path / "datasets")

    def run(
        model: dict[str, Any] | None = None,
        callbacks: tuple[Callback, ...] = (),
        agent: Any = TD3,
        collector: dict[str, Any] | None = None,
        ckpt_path: Any = None,
        trainer: dict[str, Any] | None = None,
        dataset: str | None = "recorded-v0",
        share: float | None = None,
        offline: bool = False,
        **data: Any,
    ) -> tuple[Any, ReplayData, L.Trainer]:
        source = None if dataset is None else Dataset(dataset, share, offline)
        module_data = ReplayData("Pendulum-v1", **{**SMALL, "dataset": source, "steps_per_epoch": 6, **data})
        sizes = module_data.obs_dim, module_data.action_low, module_data.action_high
        module = agent(*sizes, hidden_dims=[8], **(model or {}))
        made = make_trainer(
            callbacks=[Collector(**{"warmup_steps": 10, **(collector or {})}), *callbacks], **trainer or {}
        )
        made.fit(module, datamodule=module_data, ckpt_path=ckpt_path)
        return module, module_data, made

    return run


class Actions(Callback):
    """Record the batches of a run."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch)


RECORDED = {reward for episode in recorded.episodes() for reward in episode.reward.astype("f4").tolist()}


@pytest.mark.parametrize(("agent", "weight"), [(TD3, 0.4), (TD7, 0.1)])
def test_offline_run_takes_no_environment_step(
    agent: Any, weight: float, fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any) -> Any:
        raise AssertionError("the training environment was stepped or reset")

    monkeypatch.setattr(TrainingVectorEnv, "step", forbidden)
    monkeypatch.setattr(TrainingVectorEnv, "reset", forbidden)
    batches = Actions()
    module, data, trainer = fit({"bc_weight": weight}, (batches,), agent, offline=True, updates_per_step=2)
    assert (module.env_steps, module.episodes, module.updates) == (0, 0, 12)
    assert data.replay.num_transitions == sum(recorded.LENGTHS)
    assert {reward for batch in batches.batches for reward in batch.reward.tolist()} <= RECORDED
    assert "eval/return_mean" in trainer.callback_metrics


def test_dataset_is_in_the_replay_before_the_warm_up(fit: Fit) -> None:
    batches = Actions()
    module, data, _ = fit(callbacks=(batches,))
    assert (module.env_steps, module.updates, data.replay.steps_stored) == (16, 6, 16)
    assert data.replay.num_transitions == sum(recorded.LENGTHS) + 16
    rewards = {reward for batch in batches.batches for reward in batch.reward.tolist()}
    assert rewards & RECORDED
    assert rewards - RECORDED


def test_share_of_the_dataset_is_in_each_batch(fit: Fit) -> None:
    batches = Actions()
    module, data, _ = fit(callbacks=(batches,), share=0.25)
    assert data.replay.num_transitions == module.env_steps == 16
    for batch in batches.batches:
        assert [reward in RECORDED for reward in batch.reward.tolist()] == [False] * 6 + [True] * 2


def test_separate_dataset_has_the_settings_of_the_replay(fit: Fit) -> None:
    """Demonstrations with other rewards, discounts or steps would teach other values."""
    _, data, _ = fit(share=0.5, n_step=3, gamma=0.9, reward_scale=0.1)
    assert data.dataset is not None
    rows = data.dataset._rows
    assert rows is not None
    assert (rows.n_step, rows.gamma, rows.reward_scale) == (3, 0.9, pytest.approx(0.1))
    assert not torch.equal(rows.generator.get_state(), data.replay.generator.get_state())


def test_second_fit_keeps_the_transitions_of_the_first(fit: Fit, make_trainer: Callable[..., L.Trainer]) -> None:
    module, data, _ = fit()
    before = data.replay.num_transitions
    make_trainer(callbacks=[Collector(warmup_steps=10)]).fit(module, datamodule=data)
    assert data.replay.num_transitions == before + 6


def test_logs_of_an_offline_run_count_updates(fit: Fit, tmp_path: Path) -> None:
    logger = RunLogger(str(tmp_path), name="", version="run")
    fit({"bc_weight": 0.4}, (LogRollback(),), offline=True, trainer={"logger": logger, "max_epochs": 2})
    path = tmp_path / "run" / "metrics.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["updates"] for row in rows if row["eval/return_mean"]] == ["6", "12"]
    assert next(iter(rows[0])) == "updates"
    assert "env_steps" not in rows[0]
    assert write_curve(path).exists()


def test_changed_dataset_is_refused_on_resume(fit: Fit, tmp_path: Path) -> None:
    _, _, trainer = fit(share=0.5)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    (tmp_path / "datasets" / "recorded-v0").rename(tmp_path / "datasets" / "old-v0")
    recorded.LENGTHS, before = (5, 2), recorded.LENGTHS
    try:
        recorded.write(tmp_path / "datasets")
    finally:
        recorded.LENGTHS = before
    with refused("data.dataset", "other numbers", fix="empty_replay"):
        fit(share=0.5, ckpt_path=tmp_path / "last.ckpt", trainer={"max_epochs": 2})
    fit(share=0.5, dataset="old-v0", ckpt_path=tmp_path / "last.ckpt", trainer={"max_epochs": 2})


@pytest.mark.parametrize("offline", [False, True])
def test_dataset_that_is_added_on_resume_warns(offline: bool, fit: Fit, tmp_path: Path) -> None:
    fit(dataset=None)[2].save_checkpoint(tmp_path / "a.ckpt")
    model = {"bc_weight": 0.4} if offline else {}
    with pytest.warns(UserWarning, match=r"^data\.dataset recorded-v0 has no effect, .* Use --data\.empty_replay true"):
        _, data, _ = fit(model, ckpt_path=tmp_path / "a.ckpt", trainer={"max_epochs": 2}, offline=offline)
    assert data.replay.num_transitions == data.replay.steps_stored == (16 if offline else 22)  # without the dataset's
    assert data.dataset is not None
    assert data.dataset.state_dict() == {}


# Settings.


@pytest.mark.parametrize(
    ("dataset", "data", "setting", "value"),
    [
        ({"share": 1.5}, {}, "data.dataset.share", "1.5"),
        ({"share": 0.5, "offline": True}, {}, "data.dataset.offline", "true"),
        ({"share": 0.5}, {"priority_alpha": 0.4}, "data.priority_alpha", "data.dataset.share"),
        ({}, {"pixels": Pixels()}, "data.pixels", "data.dataset"),
    ],
)
def test_invalid_settings_of_a_dataset_are_refused(
    dataset: dict[str, Any], data: dict[str, Any], setting: str, value: str
) -> None:
    with refused(setting, value):
        ReplayData("Pendulum-v1", dataset=Dataset("recorded-v0", **dataset), **data)


SCHEDULE = Linear(3e-4, 1e-4, 10)


@pytest.mark.parametrize(
    ("settings", "setting", "value"),
    [
        ({"model": {"actor_lr": SCHEDULE}}, "model.actor_lr", "true"),
        ({"callbacks": (PolicyCheckpoint(),)}, "PolicyCheckpoint", "true"),
    ],
)
def test_offline_run_refuses_what_requires_steps(settings: dict[str, Any], setting: str, value: str, fit: Fit) -> None:
    with refused(setting, value):
        fit(**settings, offline=True)


def test_large_weight_clones_the_actions(fit: Fit) -> None:
    """The error of the actions falls although the values of random rewards say nothing."""

    def error(module: TD3) -> float:
        (episode,) = (each for each in recorded.episodes() if len(each.reward) == 7)
        return float(abs(module.act(episode.obs[:-1]) - episode.action).mean())

    errors = {
        updates: error(fit({"bc_weight": 1e6, "actor_lr": 0.02}, offline=True, steps_per_epoch=updates)[0])
        for updates in (2, 200)
    }
    assert errors[200] < 0.7 * errors[2]


# Recording.


def recordings(noise: float = 0.3, episodes: int = 2) -> list[RecordedEpisode]:
    L.seed_everything(3, verbose=False)
    data = ReplayData("Pendulum-v1", **SMALL)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[8])
    return list(record_episodes(module, data, episodes, noise))


def test_recording_is_what_the_environment_did() -> None:
    data = ReplayData("Pendulum-v1", **SMALL)
    for episode in recordings():
        env = data.make_env()
        obs, _ = env.reset(seed=episode.seed)
        for at, action in enumerate(episode.action):
            assert obs.tolist() == episode.obs[at].tolist()
            obs, reward, terminated, truncated, _ = env.step(action)
            assert reward == episode.reward[at]
            assert (terminated, truncated) == (False, at == len(episode.reward) - 1)
        assert obs.tolist() == episode.obs[-1].tolist()
        assert (episode.terminated, episode.truncated, len(episode.reward)) == (False, True, 9)


def test_recording_is_reproducible_and_noise_is_clipped() -> None:
    one, other, quiet = recordings(), recordings(), recordings(noise=0.0)
    for first, second, third in zip(one, other, quiet, strict=True):
        assert first.action.tolist() == second.action.tolist()
        assert first.seed == third.seed
        assert first.action.tolist() != third.action.tolist()
    wild = torch.from_numpy(recordings(noise=100.0)[0].action)
    assert wild.abs().max() == 2.0
    assert one[0].seed != one[1].seed


def test_normalizer_starts_with_dataset_statistics(fit: Fit) -> None:
    obs = torch.from_numpy(np.concatenate([episode.obs for episode in recorded.episodes()])).double()
    module, _, _ = fit({"bc_weight": 0.4, "normalize_observations": True}, offline=True)
    assert module.normalizer.count == len(obs)
    torch.testing.assert_close(module.normalizer.mean, obs.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(module.normalizer.var, obs.var(0, unbiased=False), rtol=1e-5, atol=1e-6)


def test_resumed_agent_counts_the_dataset_once(
    fit: Fit, make_trainer: Callable[..., L.Trainer], tmp_path: Path
) -> None:
    settings: Any = {"model": {"normalize_observations": True}, "collector": {"warmup_steps": 10}}
    fit(**settings)[2].save_checkpoint(tmp_path / "a.ckpt")
    module, data, _ = fit(**settings, ckpt_path=tmp_path / "a.ckpt", trainer={"max_epochs": 2})
    make_trainer(callbacks=[Collector(warmup_steps=10)]).fit(module, datamodule=data)
    rows = sum(length + 1 for length in recorded.LENGTHS)
    assert module.normalizer.count == rows + module.env_steps


def seen(module: TD3) -> int:
    """Return the number of observations before the last update: those of the dataset, steps and ends of episodes."""
    return sum(length + 1 for length in recorded.LENGTHS) + module.env_steps - 1 + module.episodes


@pytest.mark.parametrize("changed", ["share", "n-step", "reward scale", "best"])
def test_other_use_of_the_same_dataset_counts_it_once(changed: str, fit: Fit, tmp_path: Path) -> None:
    settings: Any = {"model": {"normalize_observations": True, "bc_weight": 0.4}, "share": 0.5}
    then: Any = {"n-step": {"n_step": 2}, "reward scale": {"reward_scale": 0.5}}.get(changed, {})
    if changed == "share":
        settings, then = {"model": settings["model"]}, {"share": 0.25}
    trainer = fit(**settings, offline=changed == "share")[2]
    if changed == "best":
        trainer.datamodule.saved_replay = lambda replay: None  # as BestCheckpoint does
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    stage: Any = {"empty_replay": True, "trainer": {"max_epochs": 2}, "ckpt_path": tmp_path / "a.ckpt"}
    module, _, _ = fit(**{**settings, **then}, **stage, collector={"warmup_steps": 10})
    assert module.normalizer.count == seen(module)

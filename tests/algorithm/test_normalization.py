"""Running statistics of observations, and agents that use them."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback
from numpy.typing import NDArray
from torch import Tensor

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, TD7, Batch, Collector, ReplayData, Trunk
from td3_lightning.algorithm import normalization
from td3_lightning.algorithm.normalization import RunningNormalizer
from td3_lightning.training.policy_checkpoint import PolicyCheckpoint
from td3_lightning.training.weight_averaging import AveragedWeights

SIZES: dict[str, Any] = {"obs_dim": 3, "action_low": [-1.0], "action_high": [2.0], "hidden_dims": (8, 8)}
AGENTS: list[Any] = [
    pytest.param(TD3, {}, id="TD3"),
    pytest.param(TD3, {"encoder": Trunk([6])}, id="TD3, encoder"),
    pytest.param(TD7, {"zs_dim": 4, "target_update_freq": 3}, id="TD7"),
]


def new_obs(rng: np.random.Generator, rows: int) -> Tensor:
    """Return observations whose means are much larger than their standard deviations."""
    return torch.from_numpy(rng.normal([1e5, -3.0, 0.0], [0.5, 2.0, 1e-3], (rows, 3)).astype(np.float32))


def new_batch(rng: np.random.Generator, rows: int = 16) -> Batch:
    obs, next_obs, action = new_obs(rng, rows), new_obs(rng, rows), torch.from_numpy(rng.uniform(-1, 2, (rows, 1)))
    return Batch(
        obs, action.float(), torch.from_numpy(rng.normal(size=rows)).float(), torch.full((rows,), 0.9), next_obs
    )


def seen(rng: np.random.Generator) -> RunningNormalizer:
    normalizer = RunningNormalizer(3)
    normalizer.update(new_obs(rng, 50))
    return normalizer


# Statistics


@pytest.mark.parametrize("sizes", [[500], [1] * 60, [3, 0, 120, 7], [0, 40]], ids=str)
def test_statistics_are_numpys_for_any_parts(sizes: list[int], rng: np.random.Generator) -> None:
    normalizer, parts = RunningNormalizer(3), [new_obs(rng, size) for size in sizes]
    for part in parts:
        normalizer.update(part)
    rows = torch.cat(parts).double().numpy()
    assert normalizer.count == len(rows)
    np.testing.assert_allclose(normalizer.mean, rows.mean(0), rtol=1e-13)
    np.testing.assert_allclose(normalizer.var, rows.var(0), rtol=1e-9)


def test_normalized_observations_are_clipped_and_keep_their_type(rng: np.random.Generator) -> None:
    normalizer, obs = seen(rng), new_obs(rng, 20)
    obs[0, 1], obs[1, 1] = 1e6, -1e6
    expected = ((obs.double() - normalizer.mean) / (normalizer.var + 1e-8).sqrt()).clamp(-10, 10)
    assert torch.equal(normalizer(obs), expected.float())
    assert expected[:2, 1].tolist() == [10, -10]
    assert normalizer(obs.bfloat16()).dtype is torch.bfloat16


def test_statistics_stay_float64_in_every_precision(rng: np.random.Generator) -> None:
    normalizer = seen(rng)
    before = copy.deepcopy(normalizer.state_dict())
    for dtype in (torch.bfloat16, torch.float64):
        assert all(map(torch.equal, normalizer.to(dtype).state_dict().values(), before.values()))
    assert {value.dtype for value in normalizer.buffers()} == {torch.float64}


def test_ranks_are_merged_with_their_own_counts(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, sent = [new_obs(rng, 30), new_obs(rng, 0), new_obs(rng, 4)], []
    monkeypatch.setattr(normalization, "stack_over_ranks", lambda moments: sent.append(moments) or [moments])
    for part in parts:
        RunningNormalizer(3).update(part)
    assert len(sent) == 3  # also from the rank without observations
    monkeypatch.setattr(normalization, "stack_over_ranks", lambda _: torch.stack(sent))
    merged = RunningNormalizer(3)
    merged.update(parts[0])
    rows = torch.cat(parts).double().numpy()
    assert merged.count == 34
    np.testing.assert_allclose(merged.var, rows.var(0), rtol=1e-9)


# Agents


def new_agent(kind: type[TD3], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an agent that can be updated without a Trainer."""
    torch.manual_seed(2)
    agent = kind(**SIZES, **settings)
    agent.noise_generator.manual_seed(3)
    optimizers = agent.configure_optimizers()
    monkeypatch.setattr(agent, "optimizers", lambda: optimizers)
    monkeypatch.setattr(agent, "manual_backward", lambda loss, **kwargs: loss.backward(**kwargs))
    return agent


@pytest.mark.parametrize(("kind", "settings"), AGENTS)
def test_agent_equals_one_with_normalized_inputs(
    kind: Any, settings: dict[str, Any], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = new_agent(kind, {**settings, "normalize_observations": True}, monkeypatch)
    plain = new_agent(kind, settings, monkeypatch)
    agent.normalizer.update(new_obs(rng, 50))
    scale, obs, action = agent.normalizer, new_obs(rng, 5), torch.rand(5, 1)
    for update in range(8):
        batch = new_batch(rng)
        normalized = batch._replace(obs=scale(batch.obs), next_obs=scale(batch.next_obs))
        logs = agent.training_step(batch, update), plain.training_step(normalized, update)
        assert str(logs[0]) == str(logs[1])
        assert torch.equal(agent(obs), plain(scale(obs)))
        assert torch.equal(agent.q_value(obs, action), plain.q_value(scale(obs), action))
        np.testing.assert_array_equal(agent.act(obs.numpy()), plain.act(scale(obs).numpy()))
    assert type(agent.update_rule) is type(plain.update_rule)
    assert agent.state_dict().keys() - plain.state_dict().keys() == {
        f"normalizer.{n}" for n in ("count", "mean", "var")
    }
    assert all(torch.equal(weight, agent.state_dict()[name]) for name, weight in plain.state_dict().items())


# Runs


def fit(make_trainer: Any, *callbacks: Callback, **settings: Any) -> tuple[Any, TD3, ReplayData]:
    """Train an agent in two environments for three epochs of 26 updates and an evaluation."""
    torch.manual_seed(0)
    data = ReplayData("toys/Seeded-v0", steps_per_epoch=26, batch_size=4, capacity=500, eval_episodes=2, num_envs=2)
    agent = TD3(3, data.action_low, data.action_high, (8,), **{"normalize_observations": True, **settings})
    trainer = make_trainer(callbacks=[*callbacks, Collector(30)], max_epochs=3)
    trainer.fit(agent, datamodule=data)
    return trainer, agent, data


def stored(data: ReplayData) -> NDArray[np.float64]:
    """Return every stored observation: those before a step, and the last one of each finished episode."""
    return np.concatenate([ring.rows[: ring.cursor, :3] for ring in data.replay.rings], dtype=np.float64)


def test_statistics_count_every_stored_observation_once(make_trainer: Any) -> None:
    trainer, agent, data = fit(make_trainer)
    rows = stored(data)
    assert len(rows) > agent.env_steps > 78
    trainer.callbacks[0].upkeep.unseen.pass_to(agent)  # those after the last update
    assert agent.normalizer.count == len(rows)
    np.testing.assert_allclose(agent.normalizer.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(agent.normalizer.var, rows.var(0), rtol=1e-9)


@pytest.mark.parametrize(
    "deploys", [PolicyCheckpoint(early_episodes=2), AveragedWeights(decay=0.9)], ids=["checkpoint", "average"]
)
def test_deployed_policy_keeps_its_own_statistics(deploys: Callback, make_trainer: Any, tmp_path: Path) -> None:
    evaluated: list[float] = []
    count = LambdaCallback(
        on_validation_batch_start=lambda _, agent, *__: evaluated.append(float(agent.normalizer.count))
    )
    trainer, _, _ = fit(make_trainer, deploys, count)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    deployed = TD3.load_from_checkpoint(tmp_path / "run.ckpt")
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)
    trained = saved.get("trained_policy", saved.get("current_model_state"))
    assert 0 < deployed.normalizer.count == evaluated[-1] < trained["normalizer.count"]


def test_checkpoint_without_statistics_loads_if_setting_is_off(make_trainer: Any, tmp_path: Path) -> None:
    trainer, agent, _ = fit(make_trainer, normalize_observations=False)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)
    assert not any("normalizer" in name for name in saved["state_dict"])
    assert "observations" not in saved["callbacks"]["Collector"]["ranks"][0]
    del saved["hyper_parameters"]["normalize_observations"]  # an older version
    torch.save(saved, tmp_path / "old.ckpt")
    obs = np.ones(3, np.float32)
    np.testing.assert_array_equal(TD3.load_from_checkpoint(tmp_path / "old.ckpt").act(obs), agent.act(obs))
    with pytest.raises(RuntimeError, match=r"Missing key.*normalizer\.count"):
        TD3.load_from_checkpoint(tmp_path / "old.ckpt", normalize_observations=True)

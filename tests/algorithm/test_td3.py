"""The module beyond its arithmetic: acting, evaluating, checkpoints, resuming."""

import contextlib
import platform
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium as gym
import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger

import toys  # noqa: F401  # registers them
from one_sentence import refused
from td3_lightning import TD3, Collector, Linear, ReplayData, UsageError


def new_data(env_id: str = "toys/Seeded-v0", **kwargs: Any) -> ReplayData:
    return ReplayData(env_id, **{"steps_per_epoch": 20, "batch_size": 4, "capacity": 500, "eval_episodes": 5, **kwargs})


def new_module(data: ReplayData, **kwargs: Any) -> TD3:
    return TD3(data.obs_dim, data.action_low, data.action_high, **{"hidden_dims": (8, 8), **kwargs})


# Acting


@pytest.mark.parametrize(
    ("obs", "got"),
    [
        (np.zeros((2, 2)), r"shape \(2, 2\) of float64"),  # as many numbers as an observation has
        (np.zeros(5), r"shape \(5,\) of float64"),
        (list("abcd"), r"shape \(4,\) of <U1"),
    ],
    ids=str,
)
def test_observations_of_another_shape_are_refused(obs: Any, got: str) -> None:
    module = TD3(4, [-1.0], [1.0], hidden_dims=(8,))
    message = rf"^obs must be numbers of shape \(4,\) or \(n, 4\), got {got}\. Use one row per obs"
    with pytest.raises(UsageError, match=message):
        module.act(obs)
    assert module.act(np.zeros((0, 4))).shape == (0, 1)


def test_bounds_may_be_arrays() -> None:
    """As those of a Gymnasium box are."""
    bounds = np.array([1.0, 2.0], np.float32)
    module = TD3(3, -bounds, bounds, hidden_dims=np.array([8, 8]))  # type: ignore[arg-type]
    assert (module.hparams["action_low"], module.hparams["hidden_dims"]) == ([-1.0, -2.0], [8, 8])


def test_acts_on_one_and_on_many_observations() -> None:
    module = TD3(3, [-2.0, 0.0], [6.0, 1.0], hidden_dims=(8,))
    obs = np.random.default_rng(0).normal(size=(5, 3))
    many = module.act(obs)
    assert (many.shape, many.dtype) == ((5, 2), np.float32)
    for one, action in zip(obs, many, strict=True):
        assert module.act(one).shape == (2,)
        np.testing.assert_allclose(module.act(one), action, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(many, module.actor(torch.tensor(obs, dtype=torch.float32)).detach().numpy())


@pytest.mark.parametrize("ends", [np.float32, np.float64])
def test_no_action_leaves_its_box_by_a_bit(ends: Any) -> None:
    """Environments assert that their box contains the action, so the rounding of a saturated tanh counts."""
    rng = np.random.default_rng(0)
    box = np.sort(rng.normal(size=(300, 2)) * 10 ** rng.uniform(-3, 3, (300, 1)), axis=1).astype(ends)
    space = gym.spaces.Box(box[:, 0], box[:, 1], dtype=ends)
    module = TD3(2, space.low.tolist(), space.high.tolist(), hidden_dims=(8,))
    with torch.no_grad():
        module.actor.layers[-1].weight.mul_(1e6)
    for action in module.act(rng.normal(size=(64, 2))):
        assert space.contains(action)


def test_acting_leaves_no_trace() -> None:
    module = TD3(3, [-1.0], [1.0], hidden_dims=(8,))
    obs, state = np.ones((2, 3), np.float32), torch.get_rng_state()
    module.act(obs)[:] = 5.0  # the answer is the caller's own
    assert obs.tolist() == np.ones((2, 3)).tolist()
    assert np.abs(module.act(obs)).max() <= 1
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in module.parameters())


# Targets and gradients


def fit(data: ReplayData, module: TD3, make_trainer: Any, *callbacks: Any, **kwargs: Any) -> L.Trainer:
    trainer: L.Trainer = make_trainer(callbacks=[Collector(10), *callbacks], **kwargs)
    trainer.fit(module, datamodule=data)
    return trainer


def test_targets_start_as_frozen_copies_and_in_no_optimizer(make_trainer: Any) -> None:
    data = new_data()
    module = new_module(data)
    targets = [*module.actor_target.parameters(), *module.critics_target.parameters()]
    online = [*module.actor.parameters(), *module.critics.parameters()]
    assert all(map(torch.equal, targets, online))
    assert not {target.data_ptr() for target in targets} & {parameter.data_ptr() for parameter in online}
    trainer = fit(data, module, make_trainer)
    assert not any(target.requires_grad or target.grad is not None for target in targets)
    assert all(parameter.requires_grad for parameter in online)
    held = [{id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in trainer.optimizers]
    assert held == [{id(p) for p in module.actor.parameters()}, {id(p) for p in module.critics.parameters()}]
    assert not any(map(torch.equal, targets, online))  # they have moved, and not to the online weights


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_trains_in_every_precision(precision: str, max_grad_norm: float | None, make_trainer: Any) -> None:
    data = new_data()
    module = new_module(data, max_grad_norm=max_grad_norm)
    before = [parameter.clone() for parameter in module.parameters()]
    fit(data, module, make_trainer, precision=precision)
    assert module.updates == 20
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())
    actor = list(zip(module.actor.parameters(), before, strict=False))
    assert not all(torch.equal(parameter, old.to(parameter)) for parameter, old in actor)  # as `precision` rounds it


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_weights_in_16_bits_are_refused(precision: str, make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(L.Trainer, "precision", precision)
    with pytest.raises(UsageError, match=rf"got '{precision}'\. Use bf16-mixed or 32-true"):
        fit(new_data(), new_module(new_data()), make_trainer)


@pytest.mark.parametrize(("supported", "warnings"), [(False, 1), (True, 0)])
def test_emulated_bfloat16_is_warned_of(
    supported: bool, warnings: int, make_trainer: Any, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    fit(new_data(), new_module(new_data()), make_trainer, precision="bf16-mixed")
    assert sum("emulates bfloat16" in str(each.message) for each in recwarn) == warnings


@pytest.mark.usefixtures("update_rule")
def test_adam_is_fused_also_with_clipped_gradients(make_trainer: Any) -> None:
    norms = []

    class Look(L.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            for network in (module.actor, module.critics):
                found = torch.cat([weight.grad.flatten() for weight in network.parameters()])
                norms.append(found.norm().item())

    module = new_module(new_data(), max_grad_norm=1e-6, policy_freq=1)
    trainer = fit(new_data(), module, make_trainer, Look())
    assert all(optimizer.defaults["fused"] for optimizer in trainer.optimizers)
    assert norms
    assert all(0.4e-6 < norm < 1.1e-6 for norm in norms)  # clip_grad_norm_ adds 1e-6 to the norm before


def test_scaled_gradients_are_not_clipped(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(L.Trainer, "precision", "16-mixed")  # which wants a GPU
    with pytest.raises(UsageError, match="16-mixed"):
        fit(new_data(), new_module(new_data(), max_grad_norm=0.5), make_trainer)


def test_an_evaluation_that_was_stopped_leaves_nothing(make_trainer: Any) -> None:
    """The next one, of the same episodes, is as if there had been none."""

    class Stop(Callback):
        def on_validation_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any, **__: Any) -> None:
            raise InterruptedError

    data = new_data()
    module = new_module(data)
    reports = []
    for callbacks in ([], [Stop()], []):
        with contextlib.suppress(InterruptedError):
            reports += make_trainer(callbacks=callbacks).validate(module, datamodule=data, verbose=False)
    assert len(reports) == 2
    assert reports[0] == reports[1]


# Doors


class Decaying(TD3):
    """An agent with other optimizers, one of which has two groups."""

    def configure_optimizers(self) -> Any:
        first, *rest = self.critics.parameters()
        groups = [{"params": [first], "weight_decay": 0.1}, {"params": rest}]
        return torch.optim.SGD(self.actor.parameters(), lr=1.0), torch.optim.AdamW(groups, lr=1.0)


def test_other_optimizers_follow_schedules_in_all_param_groups(make_trainer: Any) -> None:
    data = new_data()
    module = Decaying(data.obs_dim, data.action_low, data.action_high, actor_lr=2e-3, critic_lr=Linear(1e-3, 0, 10))
    trainer = make_trainer(callbacks=[Collector(warmup_steps=10)])
    trainer.fit(module, datamodule=data)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in trainer.optimizers]
    assert rates == [[2e-3], [0, 0]]


class OwnRates(TD3):
    """An agent of a user whose critics have another learning rate, which each update would replace."""

    def configure_optimizers(self) -> Any:
        return self.new_adam(self.actor, self.settings.actor_lr), torch.optim.Adam(self.critics.parameters(), lr=0.1)


class Scheduled(TD3):
    """An agent of a user with one of PyTorch's schedulers."""

    def configure_optimizers(self) -> Any:
        optimizers = super().configure_optimizers()
        return list(optimizers), [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in optimizers]


@pytest.mark.parametrize(("kind", "got"), [(OwnRates, "0.1"), (Scheduled, "a scheduler")])
def test_learning_rates_beside_the_settings_are_warned_of(kind: type[TD3], got: str, make_trainer: Any) -> None:
    data = new_data()
    module = kind(data.obs_dim, data.action_low, data.action_high, hidden_dims=[4])
    with pytest.warns(UserWarning, match=f"learning rates of model.actor_lr and .*{got}"):
        fit(data, module, make_trainer)


class OneOptimizer(TD3):
    """An agent with one optimizer for all networks."""

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


def test_optimizers_in_another_number_are_refused(make_trainer: Any) -> None:
    data = new_data()
    module = OneOptimizer(data.obs_dim, data.action_low, data.action_high)
    with refused("configure_optimizers", "another order or number"):
        make_trainer(callbacks=[Collector(warmup_steps=10)]).fit(module, datamodule=data)
    assert module.env_steps == 0  # before the warm-up


# Evaluation


def test_an_evaluation_is_numpys_mean_std_min_max(make_trainer: Any, tmp_path: Path) -> None:
    data = new_data(eval_episodes=6)
    module = new_module(data)
    logger = CSVLogger(tmp_path)
    fit(data, module, make_trainer, logger=logger, max_epochs=2)
    env, returns, steps = gym.make("toys/Seeded-v0"), [], []
    for seed in range(10_000, 10_006):  # with the last weights, as the evaluation at the last epoch's end
        obs, total, count, ended = env.reset(seed=seed)[0], 0.0, 0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(module.act(obs))
            total, count, ended = total + float(reward), count + 1, terminated or truncated
        returns.append(total)
        steps.append(count)
    assert len(set(steps)) > 1
    expected = {
        "eval/return_mean": np.mean(returns),
        "eval/return_std": np.std(returns),
        "eval/return_min": np.min(returns),
        "eval/return_max": np.max(returns),
        "eval/length_mean": np.mean(steps),
        "eval/steps": np.mean(steps),
        "eval/even": np.mean(np.array(steps) % 2 == 0),
        "env_steps": 50,
        "updates": 40,
        "episodes": module.episodes,
    }
    report = make_trainer().validate(module, datamodule=data, verbose=False)[0]
    for name, value in expected.items():
        assert report[name] == pytest.approx(value, rel=1e-12), name
    lines = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    evaluations = [row for row in rows if row.get("eval/return_mean")]
    assert [row["step"] for row in evaluations] == ["30", "50"]  # env_steps is the axis
    assert float(evaluations[-1]["eval/return_mean"]) == pytest.approx(np.mean(returns), rel=1e-9)


def test_a_test_uses_its_own_episodes(make_trainer: Any) -> None:
    data = new_data(test_episodes=3, eval_episodes=3)
    data.test_seeds = data.eval_seeds
    module, other = new_module(data), new_data(test_episodes=3, test_seed=50_001)
    names = ("return_mean", "return_std", "return_min", "return_max", "length_mean", "steps")
    validated = make_trainer().validate(module, datamodule=data, verbose=False)[0]
    tested = make_trainer().test(module, datamodule=data, verbose=False)[0]
    elsewhere = make_trainer().test(module, datamodule=other, verbose=False)[0]
    assert [tested[f"test/{name}"] for name in names] == [validated[f"eval/{name}"] for name in names]
    assert [tested[f"test/{name}"] for name in names] != [elsewhere[f"test/{name}"] for name in names]
    assert not any(name.startswith("eval/") for name in tested)


def test_an_evaluation_changes_nothing_in_the_run(make_trainer: Any) -> None:
    runs = []
    for limit in (0, 1.0):
        L.seed_everything(8, verbose=False)
        data = new_data(num_envs=2)
        module = new_module(data)
        fit(data, module, make_trainer, max_epochs=2, limit_val_batches=limit, num_sanity_val_steps=2)
        runs.append([*module.state_dict().values(), *data.replay.sample()])
    assert all(map(torch.equal, *runs))


# Checkpoints


def saved(make_trainer: Any, path: Path, **kwargs: Any) -> tuple[TD3, ReplayData]:
    data = new_data()
    module = new_module(data, **kwargs)
    fit(data, module, make_trainer).save_checkpoint(path)
    return module, data


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "schedules": {
        "actor_lr": Linear(1e-3, 1e-4, 100),
        "critic_lr": Linear(1e-4, 1e-3, 50, begin=5),
        "policy_freq": 3,
        "target_update_freq": 2,
        "max_grad_norm": 1.0,
    },
    "other": {"num_critics": 3, "layer_norm": True, "hidden_dims": [6], "policy_freq": 3, "max_grad_norm": 1.0},
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_checkpoint_alone_gives_a_policy_that_acts_the_same(settings: str, make_trainer: Any, tmp_path: Path) -> None:
    module, data = saved(make_trainer, tmp_path / "last.ckpt", **SETTINGS[settings])
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert checkpoint["clocks"] == {"env_steps": 30, "updates": 20, "episodes": module.episodes}
    loaded = TD3.load_from_checkpoint(tmp_path / "last.ckpt")
    assert all(map(torch.equal, loaded.state_dict().values(), module.state_dict().values()))
    assert (loaded.env_steps, loaded.updates, loaded.episodes) == (30, 20, module.episodes)
    obs = np.random.default_rng(0).normal(size=(50, data.obs_dim))
    np.testing.assert_array_equal(loaded.act(obs), module.act(obs))
    scheduled = [name for name, each in signature(TD3).parameters.items() if "Schedule" in str(each.annotation)]
    assert len(scheduled) == 2
    for name in scheduled:
        kept, given = getattr(loaded.settings, name), getattr(module.settings, name)
        assert (kept is None) == (given is None)
        if given is not None:
            assert [kept(env_steps) for env_steps in (0, 30, 1000)] == [given(env_steps) for env_steps in (0, 30, 1000)]
    assert torch.equal(loaded.noise_generator.get_state(), module.noise_generator.get_state())
    np.testing.assert_array_equal(loaded.action_box, module.action_box)
    assert not any(parameter.requires_grad for parameter in loaded.critics_target.parameters())

"""Check the Collector's actions, their order, and the stored transitions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from one_sentence import refused
from td3_lightning import TD3, Collector, Linear, ReplayData
from td3_lightning.errors import EnvError, UsageError
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.metrics_csv import read_metrics
from toys import Counter

LOW, HIGH = (-0.5, 0.25), (1.5, 8.0)


def new_data(kind: str = "Counter", **kwargs: Any) -> ReplayData:
    settings = {"steps_per_epoch": 20, "batch_size": 4, "capacity": 20_000, "eval_episodes": 1}
    return ReplayData(f"toys/{kind}-v0", **(settings | kwargs))


def new_module(data: ReplayData, **kwargs: Any) -> TD3:
    return TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), **kwargs)


def stored(data: ReplayData, env: int = 0) -> Any:
    """Return the observations, actions, rewards and ends in a ring that is not full."""
    rows = data.replay.rings[env].rows[: data.replay.rings[env].cursor]
    return rows[:, : data.obs_dim], rows[:, data.obs_dim : -2], rows[:, -2], rows[:, -1]


def steady(data: ReplayData) -> tuple[TD3, Any]:
    """Return a module whose actor always returns the same action."""
    module = new_module(data, actor_lr=0.0, critic_lr=0.0)
    for parameter in module.actor.parameters():
        parameter.data.zero_()
    module.actor.layers[-1].bias.data[:] = torch.atanh(torch.tensor([0.5] * len(data.action_low)))
    low, high = np.array(data.action_low), np.array(data.action_high)
    return module, (low + high) / 2 + 0.5 * (high - low) / 2


# Warm-up


@pytest.mark.parametrize("num_envs", [1, 3])
def test_warmup_actions_are_uniform_in_asymmetric_box(num_envs: int, make_trainer: Any) -> None:
    data = new_data(env_kwargs={"low": LOW, "high": HIGH}, num_envs=num_envs, steps_per_epoch=1)
    make_trainer(callbacks=[Collector(3000)]).fit(new_module(data), datamodule=data)
    per_env = []
    for env in range(num_envs):
        _, actions, rewards, _ = stored(data, env)
        per_env.append(actions[rewards > 0][: 3000 // num_envs])  # not the rows of last observations
    actions = np.concatenate(per_env)
    assert len(actions) == 3000
    shares = np.sort((actions - LOW) / np.subtract(HIGH, LOW), axis=0)
    assert shares.min() >= 0
    assert shares.max() <= 1
    # Kolmogorov-Smirnov distance: 1.95 / sqrt(n) is exceeded with probability 0.001.
    assert np.abs(shares - np.linspace(0, 1, 3000)[:, None]).max() < 1.95 / 3000**0.5
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.06  # the dimensions of an action are independent
    if num_envs > 1:
        assert len({float(actions[0, 0]) for actions in per_env}) == num_envs
        assert abs(np.corrcoef(per_env[0][:, 0], per_env[1][:, 0])[0, 1]) < 0.11


# Order and number


class Noted(TD3):
    """Record updates among the events of the environment."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        Counter.log.append(("update", self.updates))
        return super().training_step(batch, batch_idx)


def note(target: Any, name: str, event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record each call of a method."""
    method = getattr(target, name)

    def noted(*args: Any) -> Any:
        Counter.log.append((event, None))
        return method(*args)

    monkeypatch.setattr(target, name, noted)


@pytest.mark.parametrize(
    ("num_envs", "updates_per_step", "after_updates"),
    [
        # Number of vector steps after the first, second, ... update.
        (1, 1, [1, 1, 1, 1, 1, 1]),
        (1, 0.5, [2, 2, 2, 2, 2, 2]),
        (1, 2, [1, 0, 1, 0, 1, 0]),
        (3, 1, [1, 0, 0, 1, 0, 0]),
        (3, 0.5, [1, 1, 0, 1, 1, 0]),
        (3, 2, [1, 0, 0, 0, 0, 0]),
    ],
)
def test_order_is_step_add_sample_update(
    num_envs: int, updates_per_step: float, after_updates: list[int], make_trainer: Any, monkeypatch: Any
) -> None:
    data = new_data(num_envs=num_envs, updates_per_step=updates_per_step, steps_per_epoch=round(6 / updates_per_step))
    module = Noted(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    note(data.replay, "add", "add", monkeypatch)
    note(data.replay, "sample", "sample", monkeypatch)
    Counter.log.clear()
    make_trainer(callbacks=[Collector(4)], limit_val_batches=0).fit(module, datamodule=data)
    events = [event for event, _ in Counter.log if event != "reset"]
    once = ["step"] * num_envs + ["add"] * num_envs
    expected = once * (4 if num_envs == 1 else 2)  # the warm-up ends with a whole vector step
    for steps in after_updates:
        expected += ["sample", "update", *once * steps]
    assert events == expected
    assert module.updates == 6
    assert module.env_steps == events.count("step") == events.count("add")


def test_n_step_schedule_starts_over_with_a_new_agent(make_trainer: Any, tmp_path: Path) -> None:
    schedule, path = Linear(8, 2, 60), tmp_path / "a.ckpt"
    data = new_data(n_step=schedule, steps_per_epoch=10)
    for _ in range(2):
        module = new_module(data)
        trainer = make_trainer(callbacks=[Collector(10)])
        trainer.fit(module, datamodule=data)
        assert data.replay.rewards_summed == round(schedule(module.env_steps)) == 6
    trainer.save_checkpoint(path)
    data = new_data(n_step=schedule, steps_per_epoch=10)
    module = new_module(data)
    make_trainer(callbacks=[Collector(10)], max_epochs=2).fit(module, datamodule=data, ckpt_path=path)
    assert data.replay.rewards_summed == round(schedule(module.env_steps)) == 5


def test_updates_follow_a_schedule(make_trainer: Any) -> None:
    ratio = Linear(0.5, 2, steps=40, begin=12)
    data = new_data(updates_per_step=ratio, steps_per_epoch=60)
    module, lags = new_module(data), []

    class Pace(L.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            lags.append(sum(map(ratio, range(12, module.env_steps))) - module.updates)

    make_trainer(callbacks=[Collector(12), Pace()], max_epochs=2).fit(module, datamodule=data)
    assert module.updates == 60  # every epoch has the updates of the schedule's first value
    assert module.env_steps == 12 + 46
    assert min(lags) > -1e-9
    assert max(lags) < 2 - 1e-9


@pytest.mark.parametrize(
    ("collect", "num_envs", "updates_per_step", "expected"),
    [
        # env_steps at each update. The warm-up takes 4 steps and one update follows. Episodes have 5 steps.
        (4, 1, 1.0, [4, 8, 8, 8, 8, 12, 12, 12, 12, 16]),
        (4, 1, 0.5, [4, 8, 8, 12, 12, 16, 16, 20, 20, 24]),
        (2, 1, 1.5, [4, 6, 6, 6, 8, 8, 8, 10, 10, 10]),
        (3, 2, 1.0, [4, 8, 8, 8, 8, 12, 12, 12, 12, 16]),  # a round of 3 takes two steps of both environments
        ("episode", 1, 1.0, [4, 5, 10, 10, 10, 10, 10, 15, 15, 15]),
        ("episode", 1, 0.4, [4, 10, 10, 15, 15, 20, 20, 25, 25, 30]),
        ("episode", 2, 0.5, [4, 10, 10, 10, 20, 20, 20, 20, 20, 30]),
    ],
)
def test_updates_follow_each_collected_round(
    collect: Any, num_envs: int, updates_per_step: float, expected: list[int], make_trainer: Any
) -> None:
    data = new_data(num_envs=num_envs, updates_per_step=updates_per_step, steps_per_epoch=round(10 / updates_per_step))
    module, seen = new_module(data), []

    class Look(L.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            seen.append(module.env_steps)

    make_trainer(callbacks=[Collector(4, collect=collect), Look()]).fit(module, datamodule=data)
    assert seen[:10] == expected


def test_random_steps_are_independent_of_warmup_steps(make_trainer: Any) -> None:
    """The lander agent has no random steps. The walker blog starts updates after an episode."""
    for warmup_steps, random_steps in ((10, 0), (5, 17), (10, None)):
        data = new_data(steps_per_epoch=20)
        module, steady_action = steady(data)
        Counter.log.clear()
        collector = Collector(warmup_steps, exploration_noise=0.0, random_steps=random_steps)
        make_trainer(callbacks=[collector], limit_val_batches=0).fit(module, datamodule=data)
        given = np.array([action for event, action in Counter.log if event == "step"])
        is_random = np.abs(given - steady_action).max(axis=1) > 1e-6
        expected = 10 if random_steps is None else random_steps
        assert is_random.tolist() == [True] * expected + [False] * (warmup_steps + 20 - expected)


def test_collecting_an_endless_episode_raises_env_error(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("td3_lightning.training.collection.MAX_EPISODE_STEPS", 50)
    data = new_data(env_kwargs={"length": 10**6})
    trainer = make_trainer(callbacks=[Collector(10, collect="episode")], limit_val_batches=0)
    with pytest.raises(
        EnvError, match=r"must end an episode within 50 steps with collector\.collect episode, got none\. Set"
    ):
        trainer.fit(new_module(data), datamodule=data)


# What is stored


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_before_optimizer_step"])
def test_save_within_an_update_needs_no_other_callback(hook: str, make_trainer: Any, tmp_path: Any) -> None:
    saves = L.Callback()
    setattr(saves, hook, lambda trainer, *_: trainer.save_checkpoint(tmp_path / "user.ckpt"))
    data = new_data(steps_per_epoch=5)
    with refused("A checkpoint", "a save within update 1"):
        make_trainer(callbacks=[Collector(warmup_steps=8), saves]).fit(new_module(data), datamodule=data)


def test_interrupted_update_is_not_saved(make_trainer: Any, tmp_path: Any) -> None:
    data, path = new_data(steps_per_epoch=5), tmp_path / "user.ckpt"
    module = new_module(data)
    module.actor_loss = lambda batch: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    saves = L.Callback()
    saves.on_exception = lambda trainer, *_: trainer.save_checkpoint(path)  # type: ignore[method-assign]
    with refused("A checkpoint", "a save within update 2"):
        make_trainer(callbacks=[Collector(warmup_steps=8), saves]).fit(module, datamodule=data)
    assert not path.exists()


class OwnHooks(TD3):
    """An agent of a user with Lightning's hooks, which do nothing in a LightningModule."""

    def setup(self, stage: str) -> None:
        """Do something else."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = 1

    def on_validation_epoch_start(self) -> None:
        """Do something else."""


class OwnLoad(OwnHooks):
    """The same with the hook that restores the clocks."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert checkpoint["mine"] == 1


def test_hooks_of_a_subclass_that_do_not_call_the_agents(make_trainer: Any, tmp_path: Path) -> None:
    def run(kind: type[TD3], epochs: int, ckpt_path: Path | None = None) -> Any:
        L.seed_everything(2, verbose=False)
        data = new_data("Seeded", steps_per_epoch=5)
        module = kind(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
        trainer = make_trainer(max_epochs=epochs, precision="64-true", callbacks=[Collector(8)])
        trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
        return trainer

    whole, part, path = run(OwnHooks, 2), run(OwnHooks, 1), tmp_path / "own.ckpt"
    part.save_checkpoint(path)
    resumed = run(OwnHooks, 2, path)
    weights = zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    assert resumed.model.updates == 10
    (episode,) = whole.datamodule.val_dataloader()
    assert whole.callback_metrics["eval/return_mean"] == episode.play(whole.model.act)["return"]  # not the mean of both
    with pytest.raises(UsageError, match=r"on_load_checkpoint of OwnLoad must call super\(\)"):
        run(OwnLoad, 2, path)


def test_resumed_rank_keeps_its_own_env_steps(make_trainer: Any, tmp_path: Any) -> None:
    """Rank 0 was stopped in the warm-up, after fewer steps than this rank, and saved its clock."""
    data, path = new_data(steps_per_epoch=10), tmp_path / "own.ckpt"
    trainer = make_trainer(max_epochs=1, callbacks=[Collector(warmup_steps=20)])
    trainer.fit(new_module(data), datamodule=data)
    trainer.save_checkpoint(path)
    checkpoint = torch.load(path)
    assert checkpoint["clocks"]["env_steps"] == 30
    checkpoint["clocks"]["env_steps"] = 12
    torch.save(checkpoint, path)
    data = new_data(steps_per_epoch=10)
    module = new_module(data)
    make_trainer(max_epochs=2, callbacks=[Collector(warmup_steps=20)]).fit(module, datamodule=data, ckpt_path=path)
    assert module.env_steps == data.replay.steps_stored == 40


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_stored_rows_match_environment(end: str, make_trainer: Any) -> None:
    data = new_data(env_kwargs={"length": 4, "end": end, "low": LOW, "high": HIGH})
    Counter.log.clear()
    make_trainer(callbacks=[Collector(10)], limit_val_batches=0).fit(new_module(data), datamodule=data)
    obs, actions, rewards, ends = stored(data)
    episode, step, ever = np.arange(len(obs)) // 5, np.arange(len(obs)) % 5, 0  # five rows an episode
    ever = 4 * episode + step
    np.testing.assert_array_equal(obs, np.stack([episode, step, ever], axis=1))
    is_last = step == 4
    np.testing.assert_array_equal(rewards, np.where(is_last, 0, 10 * episode + step + 1))
    np.testing.assert_array_equal(ends, np.where(step == 3, 1.0 if end == "terminated" else 2.0, 0))
    given = [action for event, action in Counter.log if event == "step"]
    np.testing.assert_array_equal(actions[~is_last], given)
    assert len(given) == 30


def test_environments_with_different_ends_are_stored_separately(make_trainer: Any) -> None:
    data = new_data("Seeded", num_envs=3, n_step=2, capacity=120)
    make_trainer(callbacks=[Collector(100)], limit_val_batches=0).fit(new_module(data), datamodule=data)
    for _ in range(100):
        batch = data.replay.sample()  # observation: number drawn per episode, steps, length of the episode
        assert torch.equal(batch.next_obs[:, [0, 2]], batch.obs[:, [0, 2]])
        gone, ended = batch.next_obs[:, 1] - batch.obs[:, 1], batch.next_obs[:, 1] == batch.obs[:, 2]
        assert torch.equal(gone, torch.where(batch.obs[:, 2] - batch.obs[:, 1] == 1, 1.0, 2.0))
        torch.testing.assert_close(batch.discount, torch.where(ended, 0.0, 0.99**gone))


class Kept(L.pytorch.loggers.logger.Logger):
    """Store the logged metrics."""

    name, version = "kept", 0

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, dict[str, float]]] = []

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.lines.append((step, dict(metrics)))


def test_episodes_and_losses_are_logged_against_env_steps(make_trainer: Any) -> None:
    data, logger = new_data(env_kwargs={"length": 4}, reward_scale=0.1), Kept()
    trainer = make_trainer(callbacks=[Collector(10)], logger=logger, log_every_n_steps=5, limit_val_batches=0)
    trainer.fit(new_module(data), datamodule=data)
    episodes = [(step, line) for step, line in logger.lines if "train/return" in line]
    assert [step for step, _ in episodes] == [4, 8, 12, 16, 20, 24, 28]
    assert [line["train/return"] for _, line in episodes] == [40 * episode + 10 for episode in range(7)]  # unscaled
    assert {line["train/length"] for _, line in episodes} == {4}
    assert {line["train/steps"] for _, line in episodes} == {4}
    losses = [(step, line) for step, line in logger.lines if "train/critic_loss" in line]
    assert [step for step, _ in losses] == [15, 20, 25, 30]  # every five updates
    for _, line in losses:
        names = {"critic_loss", "actor_loss", "q_mean", "steps_per_second"}
        assert set(line) == {f"train/{name}" for name in names}
        assert all(np.isfinite(value) for value in line.values())


def test_logged_speed_excludes_evaluations(make_trainer: Any, monkeypatch: Any) -> None:
    data, logger = new_data(steps_per_epoch=4), Kept()
    module, seconds = new_module(data), [0.0]
    clock = SimpleNamespace(perf_counter=lambda: seconds[0] + module.env_steps / 4)
    monkeypatch.setattr("td3_lightning.training.upkeep.time", clock)

    class Evaluates(L.Callback):
        def on_validation_batch_end(self, *_: Any) -> None:
            seconds[0] += 100

    callbacks = [Collector(10), Evaluates()]
    trainer = make_trainer(callbacks=callbacks, logger=logger, log_every_n_steps=5, max_epochs=5)
    trainer.fit(module, datamodule=data)
    assert seconds[0] >= 500
    assert [line["train/steps_per_second"] for _, line in logger.lines if "train/steps_per_second" in line] == [4.0] * 4


# Noise


def explored(noise: Any, make_trainer: Any, steps: int = 1500) -> tuple[Any, Any]:
    """Return the actions after the warm-up and the policy's action, relative to half the action range."""
    data = new_data(env_kwargs={"low": LOW, "high": HIGH}, updates_per_step=0.01, steps_per_epoch=steps)
    module, action = steady(data)
    Counter.log.clear()
    make_trainer(callbacks=[Collector(10, noise)], limit_val_batches=0).fit(module, datamodule=data)
    actions = np.array([action for event, action in Counter.log if event == "step"])[10:]
    half = np.subtract(HIGH, LOW) / 2
    return (actions - action) / half, actions


def test_noise_is_gaussian_relative_to_half_range(make_trainer: Any) -> None:
    noise, _ = explored(0.1, make_trainer)  # the policy's action is five deviations from the nearer bound
    assert len(noise) == 1500
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=4 * 0.1 / 1500**0.5)
    np.testing.assert_allclose(noise.std(axis=0), 0.1, rtol=4 / 3000**0.5)
    inside = (np.abs(noise) < 0.1).mean()
    assert inside == pytest.approx(0.6827, abs=0.03)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.09
    assert abs(np.corrcoef(noise[1:, 0], noise[:-1, 0])[0, 1]) < 0.09


def test_noisy_actions_are_clipped_to_box(make_trainer: Any) -> None:
    noise, actions = explored(1.0, make_trainer, steps=1000)
    assert (actions.min(axis=0) == LOW).all()
    assert (actions.max(axis=0) == HIGH).all()
    # The policy's action is 0.5 half-ranges below the upper bound and 1.5 above the lower one.
    np.testing.assert_allclose((actions == HIGH).mean(axis=0), 0.3085, atol=0.06)
    np.testing.assert_allclose((actions == LOW).mean(axis=0), 0.0668, atol=0.035)
    assert np.abs(noise).max() < 1.51


def test_noise_follows_its_schedule_over_env_steps(make_trainer: Any) -> None:
    noise, _ = explored(Linear(0.2, 0.0, steps=1000, begin=1010), make_trainer, steps=2100)
    assert noise[:1000].std() == pytest.approx(0.2, rel=0.07)
    assert noise[1000:1100].std() == pytest.approx(0.19, rel=0.2)
    assert noise[1500:1600].std() == pytest.approx(0.09, rel=0.2)
    np.testing.assert_allclose(noise[2000:], 0, atol=1e-6)


def test_scheduled_values_are_logged(make_trainer: Any, tmp_path: Any) -> None:
    data, logger, lr = new_data(gamma=Linear(0.8, 0.9, 100)), RunLogger(str(tmp_path)), Linear(1e-3, 0.0, steps=100)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), actor_lr=lr)
    make_trainer(callbacks=[Collector(10, Linear(0.2, 0.0, steps=100))], logger=logger, log_every_n_steps=5).fit(
        module, datamodule=data
    )
    names = ["train/actor_lr", "train/noise", "train/critic_lr", "train/gamma", "train/n_step"]
    logged = read_metrics(logger.metrics.path, names)
    for env_steps, rate in logged["train/actor_lr"]:
        assert rate == lr(env_steps)
    assert len(logged["train/actor_lr"]) == len(logged["train/noise"]) == 4
    assert logged["train/noise"][-1].tolist() == [30, 0.14]
    assert logged["train/gamma"][-1].tolist() == [30, pytest.approx(0.83)]
    assert not len(logged["train/n_step"])
    assert not len(logged["train/critic_lr"])

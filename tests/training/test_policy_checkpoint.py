"""Check PolicyCheckpoint against an independent version of the authors' logic, and what it evaluates and saves."""

import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback

import toys
from td3_lightning import (
    TD3,
    AveragedWeights,
    Collector,
    PolicyCheckpoint,
    ReplayData,
    Trunk,
    UsageError,
)
from td3_lightning.envs.vector_env import Step
from td3_lightning.reporting.policy_plots import write_policy_plots
from td3_lightning.training.policy_checkpoint import Assessment
from tests.training.test_collector import Kept as KeptLog


class Scripted(toys.Counter):
    """Play episodes with given lengths and returns."""

    def __init__(self, script: list[tuple[int, float]]) -> None:
        super().__init__()
        self.script = script

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length, self.episode_return = self.script[self.episode % len(self.script)]
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, _ = super().step(action)
        return obs, self.episode_return if terminated else 0.0, terminated, truncated, {}


class AuthorsLogic:
    """The authors' `maybe_train_and_checkpoint` and `train_and_reset`, without networks.

    Args:
        early: Episodes per assessment in the early phase.
        late: Episodes per assessment in the late phase.
        switch: Updates before the late phase.
        weight: Factor on the best minimum at the switch.
    """

    def __init__(self, early: int, late: int, switch: int, weight: float) -> None:
        self.max_episodes, self.late, self.switch, self.weight = early, late, switch, weight
        self.episodes, self.steps, self.worst, self.best = 0, 0, 1e8, -1e8
        self.updates = 1  # this package makes its first update before the first assessment
        self.total, self.ends, self.copies = 0, [], []  # type: ignore[var-annotated]

    def end_episode(self, length: int, episode_return: float) -> None:
        self.episodes += 1
        self.steps += length
        self.total += length
        self.worst = min(self.worst, episode_return)
        if self.worst < self.best:
            self.train()
        elif self.episodes == self.max_episodes:
            self.best = self.worst
            self.copies.append(self.updates)
            self.train()

    def train(self) -> None:
        self.ends.append((self.total, self.updates, self.best))
        for _ in range(self.steps):
            if self.updates == self.switch:
                self.best *= self.weight
                self.max_episodes = self.late
            self.updates += 1
        self.episodes, self.steps, self.worst = 0, 0, 1e8


class Record(Callback):
    """Store the clocks at the start of each update."""

    def __init__(self) -> None:
        self.clocks: list[tuple[int, int]] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.clocks.append((pl_module.env_steps, pl_module.updates))


class Kept:
    """Collect the calls of a PolicyCheckpoint at the end of each assessment."""

    def __init__(self, checkpoint: PolicyCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: list[tuple[int, int, float]] = []
        self.copies: list[int] = []
        end = checkpoint._end

        def noted(trainer: Any, module: Any, min_return: float) -> None:
            before = checkpoint._policy
            end(trainer, module, min_return)
            self.ends.append((module.env_steps, module.updates, checkpoint.best_return))
            if checkpoint._policy is not before:
                self.copies.append(module.updates)

        monkeypatch.setattr(checkpoint, "_end", noted)


def scripted(script: list[tuple[int, float]], **kwargs: Any) -> ReplayData:
    settings = {"steps_per_epoch": 10, "batch_size": 4, "capacity": 5_000, "eval_episodes": 1}
    return ReplayData(partial(Scripted, script), **(settings | kwargs))


def new_data(**kwargs: Any) -> ReplayData:
    """Return data with training episodes of 4 to 8 steps with random returns."""
    settings = {"steps_per_epoch": 20, "batch_size": 4, "capacity": 500, "eval_episodes": 2}
    return ReplayData("toys/Seeded-v0", **(settings | kwargs))


def new_module(data: ReplayData, **kwargs: Any) -> TD3:
    settings = {"hidden_dims": (4,), "actor_lr": 0.1, "critic_lr": 0.1}
    return TD3(data.obs_dim, data.action_low, data.action_high, **(settings | kwargs))


def flat(module: Any) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in module.parameters()])


# The logic of the authors.


@pytest.mark.parametrize(("early", "late", "switch"), [(1, 4, 60), (2, 5, 60), (3, 3, 0), (1, 20, 10_000)])
def test_assessments_equal_the_authors_logic(
    early: int, late: int, switch: int, make_trainer: Any, monkeypatch: Any
) -> None:
    rng = np.random.default_rng(early + late)
    script = [(int(rng.integers(1, 9)), float(value)) for value in rng.uniform(1, 9, 400) + np.linspace(0, 60, 400)]
    warm_up = script[0][0]
    expected = AuthorsLogic(early, late, max(switch, 1), 0.7)
    data = scripted(script)
    module, record = new_module(data), Record()
    checkpoint = PolicyCheckpoint(early, late, max(switch, 1), reset_weight=0.7)
    kept = Kept(checkpoint, monkeypatch)
    callbacks = [Collector(warm_up), checkpoint, record]
    make_trainer(callbacks=callbacks, max_epochs=40, limit_val_batches=0).fit(module, datamodule=data)
    for length, episode_return in script[1:]:
        if len(expected.ends) < len(kept.ends):
            expected.end_episode(length, episode_return)
    assert [(steps - warm_up, *rest) for steps, *rest in kept.ends] == expected.ends
    assert kept.copies == [updates for updates in expected.copies if updates <= module.updates]
    assert len(kept.copies) > 3
    assert checkpoint.assessments == len(kept.ends) > len(kept.copies)
    assert checkpoint.is_late == (switch < 400)
    # As many updates as steps follow each assessment.
    for (steps, updates, _), (_, next_updates, _) in pairwise(kept.ends):
        assert record.clocks[updates] == (steps, updates)
        assert {taken for taken, _ in record.clocks[updates:next_updates]} == {steps}


def test_negative_return_is_lowered_at_the_switch() -> None:
    for best, expected in ((10.0, 9.0), (-10.0, -11.0), (-math.inf, -math.inf)):
        checkpoint = PolicyCheckpoint(switch_after=5)
        checkpoint.best_return = best
        envs: Any = SimpleNamespace(num_envs=1, episode_steps=lambda: [0])
        checkpoint.begin(5, envs)
        assert (checkpoint.best_return, checkpoint.assessment.episodes) == (best, 1)  # type: ignore[union-attr]
        checkpoint.assessment = None
        for _ in range(2):  # only once
            checkpoint.begin(6, envs)
            assert checkpoint.assessment is not None
            assert (checkpoint.best_return, checkpoint.assessment.episodes) == (expected, 20)
            checkpoint.assessment = None


def test_episode_of_the_warm_up_does_not_count(make_trainer: Any, monkeypatch: Any) -> None:
    data = scripted([(6, 3.0), (5, 2.0)])
    checkpoint = PolicyCheckpoint()
    kept = Kept(checkpoint, monkeypatch)
    make_trainer(callbacks=[Collector(4), checkpoint], limit_val_batches=0).fit(new_module(data), datamodule=data)
    # Two steps end the first episode. The updates for these two and the next five steps follow.
    assert kept.ends[:2] == [(11, 1, 2.0), (17, 8, 3.0)]


def step(ends: dict[int, float], num_envs: int) -> Step:
    """Return a step in which the episodes of some environments end with given returns."""
    ended = [env in ends for env in range(num_envs)]
    none = np.zeros((num_envs, 1), np.float32)
    reports = [{"return": ends[env]} for env in sorted(ends)]
    return Step(none, none, [0.0] * num_envs, ended, [False] * num_envs, none, reports)


def test_first_episodes_that_begin_count_in_several_environments() -> None:
    assessment = Assessment.begin(3, [0, 7, 0])  # the second environment is within an episode
    assert assessment.counts == [True, False, True]
    assert assessment.add(step({1: -100.0}, 3))  # of an earlier policy, but the next episode counts
    assert (assessment.counts, assessment.finished) == ([True, True, True], 0)
    assert assessment.add(step({0: 5.0, 2: 4.0}, 3))
    assert (assessment.counts, assessment.finished, assessment.min_return) == ([False, True, False], 2, 4.0)
    assert not assessment.add(step({0: -50.0}, 3))  # short, but it began as the fourth
    assert not assessment.is_over(-math.inf)
    assert assessment.is_over(4.5)
    assert assessment.add(step({1: 6.0, 2: -7.0}, 3))
    assert assessment.is_over(-math.inf)
    assert assessment.min_return == 4.0


# What is evaluated and saved.


class Weights(Callback):
    """Store the trained, the copied and the evaluated policy of each evaluation."""

    def __init__(self, checkpoint: PolicyCheckpoint) -> None:
        self.checkpoint = checkpoint
        self.trained: list[torch.Tensor] = []
        self.copied: list[torch.Tensor] = []
        self.evaluated: list[torch.Tensor] = []

    def on_validation_start(self, trainer: Any, pl_module: TD3) -> None:
        self.trained.append(flat(pl_module.actor))
        self.copied.append(actor_of(self.checkpoint._policy, pl_module))

    def on_validation_batch_start(self, trainer: Any, pl_module: TD3, *_: Any) -> None:
        self.evaluated.append(flat(pl_module.actor))


def actor_of(state: dict[str, torch.Tensor], module: TD3) -> torch.Tensor:
    """Return the actor's weights in a state, flattened."""
    return torch.cat([state[f"actor.{name}"].flatten() for name, _ in module.actor.named_parameters()])


def fit(make_trainer: Any, *more: Callback, ckpt_path: Any = None, **settings: Any) -> tuple[Any, TD3, Weights]:
    """Train an agent with policy checkpoints. The returns are random, so the best assessment is an early one."""
    torch.manual_seed(0)
    data, checkpoint = new_data(), PolicyCheckpoint(early_episodes=2)
    module, noted = new_module(data), Weights(checkpoint)
    trainer = make_trainer(**{"callbacks": [Collector(10), checkpoint, noted, *more], "max_epochs": 3, **settings})
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return trainer, module, noted


def test_copied_policy_is_evaluated_and_saved_but_not_trained(make_trainer: Any, tmp_path: Path) -> None:
    trainer, module, noted = fit(make_trainer)
    assert len(noted.evaluated) == 2 * len(noted.copied) == 6
    assert all(map(torch.equal, noted.evaluated[::2], noted.copied))
    assert not torch.equal(noted.trained[-1], noted.copied[-1])
    assert torch.equal(flat(module.actor), noted.trained[-1])
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    policy = TD3.load_from_checkpoint(tmp_path / "run.ckpt")
    assert torch.equal(flat(policy.actor), noted.copied[-1])
    assert torch.equal(flat(policy.critics), flat(module.critics))
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)
    assert torch.equal(actor_of(saved["trained_policy"], module), noted.trained[-1])
    _, unevaluated, _ = fit(make_trainer, limit_val_batches=0)
    assert torch.equal(flat(unevaluated), flat(module))  # an evaluation changes nothing


def test_checkpoint_within_an_evaluation_has_both_policies(make_trainer: Any, tmp_path: Path) -> None:
    saved = []

    def save(trainer: Any, module: TD3, *_: Any) -> None:
        trainer.save_checkpoint(tmp_path / "within.ckpt")
        saved.append(torch.load(tmp_path / "within.ckpt", weights_only=True))

    _, module, noted = fit(make_trainer, LambdaCallback(on_validation_batch_start=save))
    for number, checkpoint in enumerate(saved):
        assert torch.equal(actor_of(checkpoint["state_dict"], module), noted.copied[number // 2])
        assert torch.equal(actor_of(checkpoint["trained_policy"], module), noted.trained[number // 2])


@pytest.mark.parametrize("continues_with", ["the callback", "no callback", "an average"])
def test_resumed_run_trains_the_trained_weights(continues_with: str, make_trainer: Any, tmp_path: Path) -> None:
    trainer, module, noted = fit(make_trainer)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    data, began = new_data(), []
    begin = LambdaCallback(on_train_start=lambda trainer, module: began.append(flat(module)))
    checkpoint = PolicyCheckpoint(early_episodes=2)
    first = {"the callback": [checkpoint], "no callback": [], "an average": [AveragedWeights()]}[continues_with]
    resumed = make_trainer(callbacks=[*first, Collector(10), begin], max_epochs=4)
    resumed.fit(new_module(data), datamodule=data, ckpt_path=tmp_path / "run.ckpt")
    assert torch.equal(began[0], flat(module))
    if continues_with == "the callback":
        assert checkpoint.best_return >= noted.checkpoint.best_return > -math.inf
        assert checkpoint.assessments > noted.checkpoint.assessments


def test_new_stage_forgets_the_best_return(make_trainer: Any, tmp_path: Path) -> None:
    trainer, _, _ = fit(make_trainer)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    data, began = new_data(empty_replay=True), []
    checkpoint = PolicyCheckpoint(early_episodes=2)
    begin = LambdaCallback(on_train_start=lambda *_: began.append((checkpoint.best_return, checkpoint.assessments)))
    second = make_trainer(callbacks=[Collector(10), checkpoint, begin], max_epochs=4)
    second.fit(new_module(data), datamodule=data, ckpt_path=tmp_path / "run.ckpt")
    assert began == [(-math.inf, 0)]


def test_new_stage_plays_other_episodes(make_trainer: Any, tmp_path: Path) -> None:
    seeds: list[int] = []
    begin = LambdaCallback(on_train_start=lambda trainer, _: seeds.append(trainer.datamodule.envs.envs[0].first_seed))
    trainer, _, _ = fit(make_trainer, begin)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    data = new_data(empty_replay=True)
    second = make_trainer(callbacks=[Collector(10), PolicyCheckpoint(early_episodes=2), begin], max_epochs=4)
    second.fit(new_module(data), datamodule=data, ckpt_path=tmp_path / "run.ckpt")
    assert len(set(seeds)) == 2


def test_values_of_a_copied_policy_are_not_drawn(make_trainer: Any, tmp_path: Path) -> None:
    """The critics are those of the current policy, and may have another encoder or normalizer."""
    trainer, _, _ = fit(make_trainer)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    module = TD3.load_from_checkpoint(tmp_path / "run.ckpt")
    assert [path.name for path in write_policy_plots(module, new_data(), 1, tmp_path)] == ["actions.png"]


@pytest.mark.parametrize("shared", [True, False])
def test_shared_encoder_is_part_of_the_policy(shared: bool) -> None:
    module = new_module(new_data(), encoder=Trunk([5], shared=shared))
    names = set(module.policy_state())
    assert {name for name in names if not name.startswith("actor.")} == {
        *(["critics.encoder.0.weight", "critics.encoder.0.bias"] if shared else [])
    }
    assert ("actor.encoder.0.weight" in names) != shared
    obs = torch.ones(1, 3)
    before = module(obs)
    with torch.no_grad():
        for name, weight in module.state_dict().items():
            if name not in names:
                weight.add_(1.0)
    assert torch.equal(module(obs), before)


# What is refused.


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([AveragedWeights(), Collector(10)], "^AveragedWeights and PolicyCheckpoint must not be combined"),
        ([Collector(10, collect=7)], r"^collect must be 1 with PolicyCheckpoint, got 7\. Use 1, or remove"),
        ([Collector(10, random_steps=11)], "^random_steps must be at most warmup_steps with PolicyCheckpoint, got 11"),
    ],
)
def test_incompatible_callbacks_are_refused(others: list[Callback], said: str, make_trainer: Any) -> None:
    data = new_data()
    with pytest.raises(UsageError, match=said):
        make_trainer(callbacks=[*others, PolicyCheckpoint()]).fit(new_module(data), datamodule=data)


def test_logged_return_is_that_of_the_copied_policy(make_trainer: Any) -> None:
    log, data, key = KeptLog(), scripted([(3, 1.0), (3, 5.0), (3, 2.0)]), "train/policy_checkpoint_return"
    trainer = make_trainer(callbacks=[Collector(3), PolicyCheckpoint()], logger=log, max_epochs=2, limit_val_batches=0)
    trainer.fit(new_module(data), datamodule=data)
    assert [line[key] for _, line in log.lines if key in line][:3] == [5.0, 5.0, 5.0]

"""Hindsight Experience Replay against episodes that are kept in lists."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward
from lightning.pytorch.callbacks import ModelCheckpoint

import goal_toys
import recorded
from one_sentence import refused
from run_comparison import leaves
from td3_lightning import TD3, Collector, Dataset, EnvError, Hindsight, ReplayData
from td3_lightning.envs.goals import Goals
from td3_lightning.envs.wrappers import with_flat_observations
from td3_lightning.replay.episodes import RecordedEpisode, fill
from td3_lightning.replay.hindsight import HindsightReplay
from td3_lightning.serialization.checkpoint_file import read_checkpoint

GAMMA, SCALE, BATCH = 0.9, 2.0, 64


def new_replay(kind: Any = goal_toys.Walk, her: Hindsight | None = None, **settings: Any) -> HindsightReplay:
    goals = Goals(with_flat_observations(kind()), kind.__name__)
    own = {"capacity": 90, "batch_size": BATCH, "gamma": GAMMA, "reward_scale": SCALE, **settings}
    return HindsightReplay(goals, her or Hindsight(), 6, action_dim=2, **own)


class World:
    """Write random episodes of a toy to a replay buffer, and keep all of them.

    The last number of an observation is unique, and names a step and its place: environment, episode and index.
    """

    def __init__(self, kind: Any, num_envs: int, seed: int, **settings: Any) -> None:
        self.rng, self.kind = np.random.default_rng(seed), kind
        self.replay = new_replay(kind, num_envs=num_envs, **settings)
        self.function = kind()
        self.lives: list[list[list[Any]]] = [[[]] for _ in range(num_envs)]  # observations of each episode
        self.ends: dict[float, bool] = {}  # whether each step has terminated, for a reason other than the goal
        self.costs: dict[float, float] = {}  # part of each step's reward that does not depend on the goal
        self.names: dict[float, tuple[int, int, int]] = {}

    def obs(self, env: int) -> Any:
        """Add an observation to the running episode, and return it."""
        life = self.lives[env][-1]
        goal = life[-1][2:4] if life else self.rng.uniform(-3, 3, 2)
        name = float(len(self.names))
        self.names[name] = (env, len(self.lives[env]) - 1, len(life))
        life.append(np.array([*self.rng.uniform(-1, 1, 2), *goal, 0.5, name], np.float32))
        return life[-1]

    def step(self) -> None:
        env = int(self.rng.integers(len(self.lives)))
        before = self.lives[env][-1][-1] if self.lives[env][-1] else self.obs(env)
        after, fell = self.obs(env), bool(self.rng.random() < 0.05)
        reached = bool(self.function.compute_terminated(after[:2], after[2:4], {}))
        self.ends[float(before[-1])] = fell and not reached
        self.costs[float(before[-1])] = cost = 5.0 * fell
        reward = self.function.compute_reward(after[:2], after[2:4], {}) - cost
        truncated = bool(self.rng.random() < 0.05)
        self.replay.add(env, before, before[:2], float(reward), fell or reached, truncated, after)
        lost = self.rng.random() < 0.03
        if lost and not (fell or reached or truncated):
            self.replay.rings[env].truncate_episode()
        if fell or reached or truncated or lost:
            self.lives[env].append([])

    def check_batch(self) -> None:
        """Compute each row of a batch again, from the episode that it belongs to."""
        batch = [column.numpy().copy() for column in self.replay.sample()]
        for place, (obs, _, reward, discount, next_obs) in enumerate(zip(*batch, strict=True)):
            env, number, index = self.names[float(obs[-1])]
            life = self.lives[env][number]
            goal = life[index][2:4]
            if place < round(0.8 * BATCH):
                goal = obs[2:4]
                later = [tuple(each[:2]) for each in life[index + 1 :]]
                assert tuple(goal) in (later if self.replay.her.strategy == "future" else later[-1:])
            for got, stored in ((obs, life[index]), (next_obs, life[index + 1])):
                np.testing.assert_array_equal(got, [*stored[:2], *goal, *stored[4:]])
            expected = self.function.compute_reward(next_obs[:2], goal, {}) - self.costs[float(obs[-1])]
            assert reward == SCALE * expected
            terminated = self.function.compute_terminated(next_obs[:2], goal, {}) or self.ends[float(obs[-1])]
            assert discount == np.float32(0 if terminated else GAMMA)


@pytest.mark.parametrize(
    ("kind", "num_envs", "strategy"),
    [
        (goal_toys.Walk, 1, "future"),
        (goal_toys.Walk, 3, "future"),
        (goal_toys.Single, 2, "future"),
        (goal_toys.Endless, 2, "future"),
        (goal_toys.Walk, 2, "final"),
    ],
)
@pytest.mark.parametrize("capacity", [40, 1000])
def test_every_row_is_that_of_its_episode(kind: Any, num_envs: int, strategy: Any, capacity: int) -> None:
    world = World(kind, num_envs, seed=capacity, capacity=capacity, her=Hindsight(strategy=strategy))
    for step in range(250):
        world.step()
        if step > 5 and world.rng.random() < 0.3:  # also several steps between two batches
            world.check_batch()


@pytest.mark.parametrize("ended", [True, False])
def test_later_steps_have_equal_probability(ended: bool) -> None:
    replay, steps, draws = new_replay(capacity=50, batch_size=200), 5, 200
    for place in range(7, 7 + steps):
        obs, next_obs = (np.full(6, number, np.float32) for number in (place, place + 1))
        replay.add(0, obs, obs[:2], 0.0, False, ended and place == 6 + steps, next_obs)
    counts = np.zeros((steps, steps + 1))
    for _ in range(draws):
        obs = replay.sample().obs.numpy()
        assert np.count_nonzero(obs[:, 2] != obs[:, 0]) == 160  # a relabeled goal is later than the observation
        for start, goal in obs[:160, [0, 2]].astype(int) - 7:
            counts[start, goal] += 1
    for start, row in enumerate(counts):
        assert not row[: start + 1].any()
        expected = row.sum() / (steps - start)
        assert np.abs(row[start + 1 :] - expected).max() < 4.5 * expected**0.5


def test_goals_of_a_dataset_are_replaced() -> None:
    obs = np.arange(24, dtype=np.float32).reshape(4, 6)
    replay = new_replay(num_envs=2, her=Hindsight(1.0))
    fill(replay, [RecordedEpisode(obs + 100 * each, obs[1:, :2], -np.ones(3), False, True) for each in range(3)])
    batch = replay.sample()
    episodes = batch.obs[:, 5] // 100
    assert (batch.obs[:, 2] > batch.obs[:, 0]).all()
    assert (batch.obs[:, 2] // 100 == episodes).all()
    assert set(episodes.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("settings", "setting", "value"),
    [
        ({"env_id": "Pendulum-v1"}, "data.her", "Box"),
        ({"env_id": goal_toys.Aimless}, "data.her", "Dict"),
        ({"n_step": 3}, "data.n_step", "3"),
        ({"priority_alpha": 0.4}, "data.priority_alpha", "0.4"),
        ({"her": {"share": 1.5}}, "data.her.share", "1.5"),
        ({"her": {"share": float("nan")}}, "data.her.share", "nan"),
        ({"her": {"strategy": "past"}}, "data.her.strategy", "'past'"),
    ],
)
def test_bad_setting_is_one_sentence(settings: dict[str, Any], setting: str, value: str) -> None:
    with refused(setting, value):
        ReplayData(**{"env_id": goal_toys.Walk, **settings, "her": Hindsight(**settings.get("her", {}))})


def test_environment_must_have_a_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(goal_toys.Walk, "compute_reward")
    with pytest.raises(EnvError, match=r"compute_reward raised AttributeError.* remove data.her"):
        ReplayData(goal_toys.Walk, her=Hindsight())


def test_dataset_must_have_the_goals(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    recorded.write(tmp_path / "datasets", bounds=(1.0, 1.0))
    recorded.write(tmp_path / "datasets", "goals-v0", 6, (1.0, 1.0))
    data = ReplayData(goal_toys.Walk, her=Hindsight(), dataset=Dataset("recorded-v0"))
    with refused("observations of data.dataset", "Box"):
        data.setup("fit")
    with pytest.raises(ValueError, match=r"data.her must not be set with data.dataset.share"):
        ReplayData(goal_toys.Walk, her=Hindsight(), dataset=Dataset("goals-v0", share=0.5)).setup("fit")


def test_failing_reward_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goal_toys.Walk, "compute_reward", lambda self, achieved, desired, info: info["success"])
    with pytest.raises(EnvError, match=r"compute_reward raised KeyError: 'success'.*Correct it, or remove data.her"):
        ReplayData(goal_toys.Walk, her=Hindsight())


def test_rewards_of_a_wrapper_are_reported() -> None:
    data = ReplayData(goal_toys.Walk, her=Hindsight(), capacity=99, wrappers=[lambda env: TransformReward(env, abs)])
    env = data.make_env()
    obs = env.reset(seed=1)[0]
    next_obs, reward, *_ = env.step(np.zeros(2, np.float32))
    data.replay.add(0, obs, np.zeros(2), float(reward), False, True, next_obs)
    with pytest.warns(
        UserWarning, match="100% of the rewards of Walk are not those of its compute_reward, .* 1 instead"
    ):
        data.replay.sample()


def fit(folder: Path, epochs: int, ckpt_path: Any = None) -> tuple[TD3, ReplayData]:
    """Train in two environments, with normalized observations, and save each epoch."""
    L.seed_everything(5, verbose=False)
    data = ReplayData(
        goal_toys.Walk,
        num_envs=2,
        her=Hindsight(),
        capacity=60,
        batch_size=16,
        steps_per_epoch=30,
        eval_episodes=1,
    )
    agent = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[8], normalize_observations=True)
    saves = ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Collector(warmup_steps=20), saves],
    )  # fmt: skip
    trainer.fit(agent, datamodule=data, ckpt_path=ckpt_path)
    return agent, data


def test_resumed_run_is_bit_exact(tmp_path: Path) -> None:
    agent, data = fit(tmp_path / "whole", 3)
    resumed, other = fit(tmp_path / "resumed", 3, tmp_path / "whole" / "epoch=0.ckpt")
    assert dict(leaves(resumed.state_dict())) == dict(leaves(agent.state_dict()))
    assert dict(leaves(other.replay.state_dict())) == dict(leaves(data.replay.state_dict()))
    saved = read_checkpoint(tmp_path / "whole" / "epoch=0.ckpt")["ReplayData"]["ranks"][0]["replay"]
    assert saved["her_rng"] != data.replay.state_dict()["her_rng"]

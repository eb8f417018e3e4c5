"""Replay buffer against a reference that keeps Python lists of episodes."""

import copy
import itertools
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningDataModule

from one_sentence import refused
from td3_lightning import Batch, Linear, Replay, UsageError

OBS_DIM, ACTION_DIM = 3, 2


@dataclass
class Life:
    """One episode: `steps` of (obs, action, reward), the final observation, and how it ended."""

    steps: list[tuple[Any, Any, float]] = field(default_factory=list)
    next_obs: Any = None
    end: str = ""  # "terminated", "truncated", or "" if running


class Naive:
    """Reference replay: all episodes, and the number of rows that they occupy."""

    def __init__(self, rows: int, n_step: int, gamma: float, scale: float) -> None:
        self.rows, self.n_step, self.gamma, self.scale = rows, n_step, gamma, scale
        self.lives = [Life()]

    def add(self, obs: Any, action: Any, reward: float, end: str, next_obs: Any) -> None:
        life = self.lives[-1]
        life.steps.append((obs, action, reward))
        life.next_obs = next_obs
        self.close(end)

    def close(self, end: str) -> None:
        if end and self.lives[-1].steps:
            self.lives[-1].end = end
            self.lives.append(Life())

    def transitions(self) -> dict[float, tuple[Any, ...]]:
        """Return all transitions that can be sampled, by the unique first value of the observation."""
        rows_of = [len(life.steps) + 1 if life.steps else 0 for life in self.lives]  # one for the last obs
        alive_from, row, found = sum(rows_of) - self.rows, 0, {}
        for life, rows in zip(self.lives, rows_of, strict=True):
            for start, (obs, action, _) in enumerate(life.steps):
                span = min(self.n_step, len(life.steps) - start)
                finished = bool(life.end) or span == self.n_step
                if finished and row + start >= alive_from:
                    found[float(obs[0])] = (obs, action, *self.outcome(life, start, span))
            row += rows
        return found

    def outcome(self, life: Life, start: int, span: int) -> tuple[float, float, Any]:
        rewards = [float(np.float32(reward * self.scale)) for _, _, reward in life.steps[start : start + span]]
        total = sum(self.gamma**k * reward for k, reward in enumerate(rewards))
        at_end = start + span == len(life.steps)
        next_obs = life.next_obs if at_end else life.steps[start + span][0]
        return total, 0.0 if at_end and life.end == "terminated" else self.gamma**span, next_obs


class World:
    """Write random episodes to a replay, and to one reference for each environment."""

    def __init__(self, seed: int, num_envs: int, n_step: int, rows: int, ends: float = 0.15) -> None:
        self.rng, self.ends = np.random.default_rng(seed), ends
        self.gamma, scale = float(self.rng.uniform(0.5, 1.0)), float(self.rng.choice([1.0, 0.1, 3.0]))
        self.replay = Replay(
            OBS_DIM,
            ACTION_DIM,
            capacity=rows * num_envs,
            batch_size=256,
            n_step=n_step,
            gamma=self.gamma,
            num_envs=num_envs,
            reward_scale=scale,
        )
        self.naive = [Naive(rows, n_step, self.gamma, scale) for _ in range(num_envs)]
        self.names = itertools.count(1)
        self.obs = [self.new_obs() for _ in range(num_envs)]

    def new_obs(self) -> Any:
        return np.array([next(self.names), *self.rng.normal(size=OBS_DIM - 1)], np.float32)

    def step(self, env: int) -> None:
        ends = ["terminated", "truncated", ""]
        end = str(self.rng.choice(ends, p=[self.ends / 2, self.ends / 2, 1 - self.ends]))
        both = end == "terminated" and self.rng.random() < 0.3  # both at once: the value still ends
        action, next_obs = self.rng.normal(size=ACTION_DIM).astype(np.float32), self.new_obs()
        reward = float(self.rng.normal() * 10)
        self.replay.add(env, self.obs[env], action, reward, end == "terminated", end == "truncated" or both, next_obs)
        self.naive[env].add(self.obs[env], action, reward, end, next_obs)
        self.obs[env] = self.new_obs() if end else next_obs

    def lose(self, env: int) -> None:
        """Truncate the running episode and begin a new one, as after a failed restore."""
        self.replay.rings[env].truncate_episode()
        self.naive[env].close("truncated")
        self.obs[env] = self.new_obs()

    def check(self) -> None:
        expected: dict[float, tuple[Any, ...]] = {}
        for naive in self.naive:
            expected |= naive.transitions()
        assert self.replay.num_transitions == len(expected)
        seen: set[float] = set()
        for _ in range(40):
            if not expected:
                break
            seen |= check_batch(self.replay, expected)
            if len(seen) == len(expected):
                break
        assert seen == set(expected)  # each that may be drawn is drawn


def check_batch(replay: Replay, expected: dict[float, tuple[Any, ...]]) -> set[float]:
    """Sample a batch, and compare every transition with the reference."""
    batch = replay.sample()
    assert all(part.dtype == torch.float32 and len(part) == replay.batch_size for part in batch)
    items = [expected.get(name) for name in batch.obs[:, 0].tolist()]
    assert None not in items, "a transition that should not be there"
    obs, action, reward, discount, next_obs = (np.array(part) for part in zip(*items, strict=True))
    np.testing.assert_array_equal(batch.obs.numpy(), obs)
    np.testing.assert_array_equal(batch.action.numpy(), action)
    np.testing.assert_array_equal(batch.next_obs.numpy(), next_obs)
    # float32 sums of n terms and products of n factors: half a unit in the last place each, of numbers of
    # the size of the largest reward here (about 150 times the scale).
    units = 2 * replay.n_step * np.finfo(np.float32).eps
    np.testing.assert_allclose(batch.discount.numpy(), discount, rtol=units, atol=0)
    np.testing.assert_allclose(batch.reward.numpy(), reward, rtol=0, atol=units * 150 * replay.reward_scale)
    if replay.n_step == 1:
        np.testing.assert_array_equal(batch.reward.numpy(), reward.astype(np.float32))
        np.testing.assert_array_equal(batch.discount.numpy(), discount.astype(np.float32))
    return set(batch.obs[:, 0].tolist())


@pytest.mark.parametrize("n_step", [1, 2, 3, 6])
@pytest.mark.parametrize("num_envs", [1, 2, 4])
def test_random_episodes_match_the_reference(n_step: int, num_envs: int) -> None:
    for seed, (rows, ends) in enumerate([(n_step + 2, 0.2), (n_step + 3, 0.5), (13, 0.1), (37, 0.03)]):
        world = World(seed, num_envs, n_step, rows, ends)
        for count in range(6 * rows):  # several times round
            env = int(world.rng.integers(num_envs)) if seed % 2 else count % num_envs
            world.step(env)
            if count < 20 or count % 5 == 0:
                world.check()


@pytest.mark.parametrize("n_step", [1, 5])
def test_truncating_a_running_episode_matches_the_reference(n_step: int) -> None:
    """Truncate after any number of steps, including 0, twice, and right after the end of an episode."""
    for seed, rows in enumerate([n_step + 2, 9, 20]):
        world = World(seed, 2, n_step, rows, ends=0.2)
        world.lose(0)
        for count in range(12 * rows):
            env = int(world.rng.integers(2))
            world.step(env)
            if world.rng.random() < 0.2:
                world.lose(env)
                if world.rng.random() < 0.3:
                    world.lose(env)
            if count % 3 == 0:
                world.check()


def filled(n_step: int = 1, ends: list[str] | None = None, rows: int = 50, **kwargs: Any) -> Replay:
    """Fill a replay of one environment with observations t, rewards 10**t and the given ends."""
    replay = Replay(1, 1, capacity=rows, batch_size=64, n_step=n_step, **{"gamma": 0.5, **kwargs})
    for step, end in enumerate(ends or []):
        obs, after = np.array([step], np.float32), np.array([step + 1 + 100 * bool(end)], np.float32)
        replay.add(0, obs, np.zeros(1, np.float32), 10.0**step, end == "terminated", end == "truncated", after)
    return replay


def drawn(replay: Replay) -> dict[float, tuple[float, float, float]]:
    batch = replay.sample()
    columns = (batch.obs[:, 0], batch.reward, batch.discount, batch.next_obs[:, 0])
    return {o: (r, d, n) for o, r, d, n in zip(*(column.tolist() for column in columns), strict=True)}


def test_termination_stops_bootstrapping_and_time_limit_does_not() -> None:
    assert drawn(filled(1, ["terminated", "truncated", ""])) == {
        0: (1.0, 0.0, 101.0),
        1: (10.0, 0.5, 102.0),
        2: (100.0, 0.5, 3.0),
    }


def test_batch_moves_to_a_device_with_its_types() -> None:
    batch = Batch(*(torch.randn(5, *shape) for shape in ((3,), (2,), (), (), (3,))))
    assert isinstance(LightningDataModule().transfer_batch_to_device(batch, torch.device("meta"), 0), Batch)
    assert all(map(torch.equal, batch.to(torch.device("cpu")), batch))
    frames = batch._replace(obs=torch.zeros(5, 3, dtype=torch.uint8))
    assert [column.dtype for column in frames.to(torch.device("meta"))] == [torch.uint8, *[torch.float32] * 4]


def test_three_step_returns_match_hand_computed_values() -> None:
    assert drawn(filled(3, ["", "", "", "truncated"])) == {
        0: (1 + 5 + 25, 0.125, 3.0),
        1: (10 + 50 + 250, 0.125, 104.0),
        2: (100 + 500, 0.25, 104.0),
        3: (1000, 0.5, 104.0),
    }
    assert drawn(filled(3, ["", "terminated", "", "", ""])) == {
        0: (1 + 5, 0.0, 102.0),
        1: (10, 0.0, 102.0),
        2: (100 + 500 + 2500, 0.125, 5.0),
    }


def test_incomplete_n_step_return_is_not_sampled() -> None:
    assert filled(3, ["", ""]).num_transitions == 0
    assert set(drawn(filled(3, ["", "", ""]))) == {0}


def test_sampling_an_empty_replay_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"transition.*warmup_steps.*\b3\b"):  # n_step x num_envs
        filled(3, ["", ""]).sample()


def test_step_that_does_not_continue_the_episode_is_refused() -> None:
    replay = filled(1, ["", ""])
    other, action = np.array([7.0]), np.zeros(1)
    with refused("obs", "array([7.], dtype=float32)", "truncated=True"):
        replay.add(0, other, action, 1.0, False, False, other)
    assert drawn(replay)[1] == (10.0, 0.5, 2.0)
    replay.add(0, np.array([2.0]), action, 1.0, False, True, other)
    replay.add(0, np.array([8.0]), action, 1.0, False, False, other)
    assert drawn(replay)[2] == (1.0, 0.5, 7.0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda replay: pickle.loads(pickle.dumps(replay))])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_copy_is_independent_and_complete(alpha: float, copied: Any) -> None:
    one, other = (filled(2, [""] * 30 + ["truncated"], rows=20, priority_alpha=alpha) for _ in range(2))
    other.generator.set_state(one.generator.get_state())
    clone = copied(one)
    for replay in (clone, other):
        for step in range(30, 45):
            replay.add(0, np.array([step]), np.zeros(1), 1.0, False, False, np.array([step + 1]))
    assert all(map(torch.equal, clone.sample(), other.sample()))
    assert clone.sample().obs.max() > 31 > one.sample().obs.max()


def test_sampling_is_uniform_over_unequal_rings() -> None:
    world = World(0, 3, 2, 40)
    for env, steps in ((0, 100), (1, 9), (2, 23)):
        for _ in range(steps):
            world.step(env)
    counts: dict[float, int] = {}
    for _ in range(200):
        for name in world.replay.sample().obs[:, 0].tolist():
            counts[name] = counts.get(name, 0) + 1
    transitions = world.replay.num_transitions
    assert 50 < transitions < 70
    assert len(counts) == transitions
    mean = 200 * 256 / transitions
    chi_square = sum((count - mean) ** 2 / mean for count in counts.values())
    degrees = transitions - 1
    # Mean `degrees`, variance twice that: within four standard deviations, and not too even either.
    assert abs(chi_square - degrees) < 4 * (2 * degrees) ** 0.5


@pytest.mark.parametrize("num_envs", [1, 2])
def test_transition_index_wraps_around(num_envs: int) -> None:
    world = World(3, num_envs, 1, rows=40)
    memory = len(world.replay.rings[0].index.offsets)
    for _ in range(memory + 100):
        for env in range(num_envs):
            world.step(env)
    assert all(ring.index.oldest > memory for ring in world.replay.rings)
    world.check()


@pytest.mark.parametrize("steps", [0, 17, 200])
@pytest.mark.parametrize(("num_envs", "n_step"), [(1, 1), (1, 3), (3, 4)])
def test_restored_replay_continues_bit_exactly(tmp_path: Path, steps: int, num_envs: int, n_step: int) -> None:
    one, two = World(3, num_envs, n_step, 30), World(3, num_envs, n_step, 30)
    for _ in range(steps):
        for env in range(num_envs):
            one.step(env)
            two.step(env)
    if one.replay.num_transitions:
        one.replay.sample()  # the generators are no longer at their seeds, nor alike
    torch.save(one.replay.state_dict(), tmp_path / "replay.pt")
    fresh = World(3, num_envs, n_step, 30).replay
    fresh.load_state_dict(torch.load(tmp_path / "replay.pt", weights_only=True))
    two.replay = fresh
    for count in range(100):
        for env, world in itertools.product(range(num_envs), (one, two)):
            if count % 40 == 0 and env == 0:
                world.lose(env)
            world.step(env)
        if one.replay.num_transitions:
            assert all(map(torch.equal, one.replay.sample(), two.replay.sample()))
    two.check()


@pytest.mark.parametrize(
    "other",
    [{"capacity": 41}, {"num_envs": 2}, {"obs_dim": 2, "action_dim": 3}, {"n_step": 3}, {"reward_scale": 2}],
    ids=str,
)
def test_state_of_another_layout_is_refused(other: dict[str, int]) -> None:
    shape = {"obs_dim": OBS_DIM, "action_dim": ACTION_DIM, "capacity": 40, "num_envs": 1, "n_step": 2}
    state = Replay(**shape).state_dict()
    with pytest.raises(UsageError, match="replay"):
        Replay(**(shape | other)).load_state_dict(state)


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        *(({"capacity": 4, "n_step": 3}, "4"), ({"batch_size": 0}, "0"), ({"n_step": 0}, "0"), ({"num_envs": 0}, "0")),
        *(({"gamma": 1.01}, "1.01"), ({"gamma": float("nan")}, "nan"), ({"reward_scale": 0.0}, "0.0")),
    ],
    ids=str,
)
def test_invalid_setting_error_has_value_and_fix(wrong: dict[str, Any], value: str) -> None:
    with refused(next(iter(wrong)), value):
        Replay(1, 1, **wrong)


def test_increasing_n_step_schedule_is_refused() -> None:
    with pytest.raises(UsageError, match=r"n_step .* got 5.* Use a number, or .* its largest value\."):
        Replay(1, 1, n_step=Linear(start=1, end=5, steps=10))


def test_schedule_decreases_n_step() -> None:
    replay = Replay(1, 1, capacity=50, batch_size=64, gamma=0.5, n_step=Linear(start=3, end=1, steps=8))
    for step in range(8):
        obs, next_obs = np.float32([step]), np.float32([step + 1])
        replay.add(0, obs, np.float32([0]), 1.0, terminated=False, truncated=False, next_obs=next_obs)
        expected = round(3 - 2 * (step + 1) / 8)
        assert replay.rewards_summed == expected
        if step >= 2:  # a window is complete with the longest sum
            batch = replay.sample()
            assert set((batch.next_obs - batch.obs).flatten().tolist()) == {expected}
            assert set(batch.reward.tolist()) == {sum(0.5**power for power in range(expected))}
            assert set(batch.discount.tolist()) == {0.5**expected}
    assert expected == 1
    fresh = Replay(1, 1, capacity=50, batch_size=64, gamma=0.5, n_step=Linear(start=3, end=1, steps=8))
    fresh.load_state_dict(replay.state_dict())
    assert fresh.rewards_summed == 1


def test_schedule_increases_gamma() -> None:
    settings: dict[str, Any] = {"capacity": 50, "batch_size": 64, "n_step": 2, "gamma": Linear(0.5, 0.9, steps=8)}
    replay, expected = Replay(1, 1, **settings), 0.5
    for step in range(10):
        obs, next_obs = np.float32([step]), np.float32([step + 1])
        replay.add(0, obs, np.float32([0]), 1.0, terminated=False, truncated=False, next_obs=next_obs)
        expected = 0.5 + 0.4 * min((step + 1) / 8, 1)
        assert replay.gamma == pytest.approx(expected)
        if step >= 1:
            batch = replay.sample()
            assert batch.reward.unique().item() == pytest.approx(1 + expected)
            assert batch.discount.unique().item() == pytest.approx(expected**2)
    fresh = Replay(1, 1, **settings)
    fresh.load_state_dict(replay.state_dict())
    assert fresh.gamma == 0.9


def test_gamma_counts_the_steps_before_the_buffer() -> None:
    replay = Replay(1, 1, capacity=50, gamma=Linear(0.5, 0.9, steps=8))
    replay.steps_before = 8
    assert replay.gamma == 0.9

"""Prioritized sampling against a reference that keeps a dictionary of priorities."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from one_sentence import refused
from td3_lightning import Replay
from td3_lightning.replay.priorities import SumTree
from tests.replay.test_buffer import ACTION_DIM, OBS_DIM, World

BATCH = 32


class PrioritizedWorld(World):
    """Write random episodes to a prioritized replay, and keep the priority of each transition in a dictionary.

    A transition is named by the first number of its observation, which is unique.
    """

    def __init__(
        self, seed: int, num_envs: int, n_step: int, rows: int, ends: float = 0.15, alpha: float = 0.4
    ) -> None:
        super().__init__(seed, num_envs, n_step, rows, ends)
        self.alpha = alpha
        self.replay: Any = self.new_replay()
        self.priority: dict[float, float] = {}
        self.largest = 1.0
        self.names_drawn: list[float] = []

    def new_replay(self) -> Replay:
        replay = self.replay
        return Replay(
            OBS_DIM,
            ACTION_DIM,
            capacity=replay.capacity,
            batch_size=BATCH,
            n_step=replay.n_step,
            gamma=replay.gamma,
            num_envs=len(replay.rings),
            reward_scale=replay.reward_scale,
            priority_alpha=self.alpha,
        )

    def step(self, env: int) -> None:
        super().step(env)
        self.follow()

    def lose(self, env: int) -> None:
        super().lose(env)
        self.follow()

    def follow(self) -> None:
        """Give new transitions the largest priority, and forget those that can no longer be sampled."""
        names = [name for naive in self.naive for name in naive.transitions()]
        self.priority = {name: self.priority.get(name, self.largest) for name in names}

    def positions(self) -> dict[float, int]:
        """Return the place of each transition in the array of all rings."""
        firsts, found = self.replay.rows[:, 0].tolist(), {}
        for env, ring in enumerate(self.replay.rings):
            start = env * len(ring.rows)
            found |= {firsts[place]: place for place in range(start, start + ring.length)}
        return {name: found[name] for name in self.priority}

    def expected_draw(self) -> list[float]:
        """Return the names of the transitions that the next batch must contain."""
        generator = torch.Generator()
        generator.set_state(self.replay.generator.get_state())
        shares = torch.rand(BATCH, generator=generator, dtype=torch.float64).numpy()
        names = sorted(self.priority, key=self.positions().__getitem__)
        sums = np.cumsum([self.priority[name] for name in names])
        return [names[place] for place in np.searchsorted(sums, shares * sums[-1], side="right")]

    def draw(self) -> None:
        expected = self.expected_draw()
        self.names_drawn = self.replay.sample().obs[:, 0].tolist()
        assert self.names_drawn == expected

    def update(self) -> None:
        """Assign random TD errors to the last batch."""
        errors = np.abs(self.rng.standard_cauchy(BATCH)).astype(np.float32)
        self.replay.priorities.update(torch.from_numpy(errors))
        powers = np.maximum(errors, 1) ** np.float32(self.alpha)
        self.largest = max(self.largest, float(powers.max()))
        self.priority |= {
            name: float(power) for name, power in zip(self.names_drawn, powers, strict=True) if name in self.priority
        }

    def reset(self) -> None:
        self.replay.priorities.reset_max_priority()
        self.largest = max(self.priority.values(), default=1.0)

    def check(self) -> None:
        """Compare all priorities, the sums above them and the largest priority."""
        priorities = self.replay.priorities
        assert priorities is not None
        priorities.synchronize()
        values = dict.fromkeys(range(len(self.replay.rows)), 0.0)
        values |= {place: self.priority[name] for name, place in self.positions().items()}
        np.testing.assert_array_equal(priorities._tree.values[: len(values)], np.float32(list(values.values())))
        assert not priorities._tree.values[len(values) :].any()
        assert priorities.max_priority == self.largest
        rebuilt = SumTree(len(values))
        rebuilt.set(np.arange(len(values)), priorities._tree.values[: len(values)])
        assert all(map(np.array_equal, priorities._tree.levels, rebuilt.levels))


def random_actions(world: PrioritizedWorld, count: int, num_envs: int) -> None:
    """Add, draw, update and reset at random; a batch may be updated late, when rows of it are overwritten."""
    pending = False
    for _ in range(count):
        choice = world.rng.random()
        if choice < 0.5 or not world.priority:
            world.step(int(world.rng.integers(num_envs)))
        elif choice < 0.53:
            world.lose(int(world.rng.integers(num_envs)))
        elif pending:
            world.update()
            pending = False
        elif choice < 0.95:
            world.draw()
            pending = True
        else:
            world.reset()


@pytest.mark.parametrize(("n_step", "num_envs"), [(1, 1), (1, 4), (2, 2), (5, 1), (5, 4)])
def test_random_adds_draws_and_updates_match_the_reference(n_step: int, num_envs: int) -> None:
    """Includes rings that wrap around many times, ends of episodes, lost episodes and late updates."""
    for seed, (rows, ends) in enumerate([(n_step + 2, 0.3), (n_step + 3, 0.5), (13, 0.1), (67, 0.03)]):
        world = PrioritizedWorld(seed, num_envs, n_step, rows, ends, alpha=[0.4, 1.0][seed % 2])
        for _ in range(40):
            random_actions(world, 20, num_envs)
            world.check()


def chi_square(counts: Any, expected: Any) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_draws_are_proportional_to_the_priorities() -> None:
    """The chi-square statistic of 60 classes is below 100 with a probability of 99.9%, and has a mean of 59."""
    world = PrioritizedWorld(3, 2, 3, 40, ends=0.1, alpha=0.7)
    random_actions(world, 400, 2)
    names = {name: place for place, name in enumerate(world.priority)}
    counts, draws = np.zeros(len(names)), 4_000
    for _ in range(draws):
        for name in world.replay.sample().obs[:, 0].tolist():
            counts[names[name]] += 1
    priority = np.array(list(world.priority.values()))
    assert 50 < len(names) < 80
    assert priority.max() > 3 * priority.min()
    limit = len(names) + 4 * np.sqrt(2 * len(names))
    assert chi_square(counts, priority / priority.sum() * draws * BATCH) < limit
    assert chi_square(counts, draws * BATCH / len(names)) > 10 * limit  # uniform sampling fails
    squared = priority**1.1
    assert chi_square(counts, squared / squared.sum() * draws * BATCH) > limit  # a slightly larger exponent fails


@pytest.mark.parametrize("num_envs", [1, 3])
def test_loaded_replay_continues_bit_exactly(num_envs: int) -> None:
    world = PrioritizedWorld(5, num_envs, 2, 50, ends=0.1)
    for _ in range(20):
        random_actions(world, 50, num_envs)
        world.follow()
        again = copy.copy(world)
        again.replay = world.new_replay()
        again.replay.load_state_dict(copy.deepcopy(world.replay.state_dict()))
        again.check()
        one, two = world.replay.priorities, again.replay.priorities
        assert one is not None
        assert two is not None
        assert all(map(np.array_equal, one._tree.levels, two._tree.levels))
        assert again.replay.sample().obs.equal(world.replay.sample().obs)
        world.replay.priorities.update(torch.full((BATCH,), 2.0))
        again.replay.priorities.update(torch.full((BATCH,), 2.0))
        world.priority = dict(zip(world.priority, values_of(world.replay), strict=True))
        world.largest = one.max_priority
        world.replay = again.replay


def values_of(replay: Replay) -> list[float]:
    rings: list[torch.Tensor] = replay.state_dict()["priorities"]["rings"]
    return [value for ring in rings for value in ring.tolist()]


@pytest.mark.parametrize("alpha", [0.4, 1.0])
def test_priorities_of_another_alpha_start_over(alpha: float) -> None:
    world = PrioritizedWorld(1, 2, 2, 30, alpha=0.4)
    random_actions(world, 60, 2)
    world.replay.sample()
    errors = torch.linspace(1, 50, BATCH)
    world.replay.priorities.update(errors)
    before = np.array(values_of(world.replay))
    world.alpha = alpha
    again = world.new_replay()
    again.load_state_dict(copy.deepcopy(world.replay.state_dict()))
    assert before.max() > 4
    assert again.priorities is not None
    assert world.replay.priorities is not None
    is_same = alpha == 0.4
    assert values_of(again) == (before.tolist() if is_same else [1.0] * len(before))
    assert again.priorities.max_priority == (world.replay.priorities.max_priority if is_same else 1.0)


def test_replay_saved_without_priorities_starts_with_equal_ones() -> None:
    world = World(1, 2, 2, 30)
    for count in range(100):
        world.step(count % 2)
    state = world.replay.state_dict()
    assert "priorities" not in state
    prioritized = PrioritizedWorld(1, 2, 2, 30).new_replay()
    prioritized.gamma_schedule = world.replay.gamma_schedule
    prioritized.load_state_dict(state)
    assert values_of(prioritized) == [1.0] * world.replay.num_transitions
    world.replay.load_state_dict(prioritized.state_dict())  # uniform sampling ignores priorities


def test_alpha_out_of_range_is_one_sentence() -> None:
    with refused("priority_alpha", "1.5"):
        Replay(1, 1, capacity=10, priority_alpha=1.5)


def test_diverged_td_errors_do_not_reach_the_sums() -> None:
    world = PrioritizedWorld(1, 1, 1, 30, alpha=1.0)
    for _ in range(20):
        world.step(0)
    world.draw()
    world.replay.priorities.update(torch.tensor([float("nan"), float("inf")] * (BATCH // 2)))
    assert torch.isfinite(world.replay.sample().obs).all()
    assert np.isfinite(values_of(world.replay)).all()


# The sum tree.


@pytest.mark.parametrize("size", [1, 33, 1_025, 1_100_000])
def test_every_share_finds_its_number(size: int, rng: Any) -> None:
    tree, values = SumTree(size), np.zeros(size, np.float32)
    for count in (1, 5, size):
        places = rng.integers(size, size=count)
        numbers = (rng.pareto(1.0, count) * (rng.random(count) < 0.7)).astype(np.float32)
        tree.set(places, numbers)
        values[places] = numbers
    tree.set(np.array([size - 1]), 1e-3)
    values[-1] = 1e-3
    np.testing.assert_array_equal(tree.values[:size], values)
    sums = values.astype(np.float64).cumsum()
    shares = np.append(rng.random(2_000), [0.0, 1 - 2.0**-53])
    found = tree.find(shares)
    assert (values[found] > 0).all()
    # Both running sums round, so a share may fall on the other side of a bound.
    points, tolerance = shares * sums[-1], 1e-12 * sums[-1]
    assert (points < sums[found] + tolerance).all()
    assert (points >= sums[found] - values[found] - tolerance).all()


def test_sums_do_not_drift_over_many_updates(rng: Any) -> None:
    tree = SumTree(5_000)
    for scale in (1e30, 1.0):  # a sum that kept the rounding errors of large numbers would be wrong afterwards
        for _ in range(1_000):
            tree.set(rng.integers(5_000, size=64), (scale * rng.random(64)).astype(np.float32))
    tree.set(np.flatnonzero(tree.values > 1), 0.5)
    for level in tree.levels[1:]:
        assert level.sum() == pytest.approx(tree.values.sum(dtype=np.float64), rel=1e-13)

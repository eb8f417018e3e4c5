"""Check wrappers, vector environments, evaluation episodes and restored episodes."""

import io
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from td3_lightning.envs.car_racing import Pedals
from td3_lightning.envs.checked import RestorableEnv, episode_seed
from td3_lightning.envs.episode import Episode, Episodes
from td3_lightning.envs.reports import scalar_info
from td3_lightning.envs.vector_env import EnvList, TrainingVectorEnv
from td3_lightning.envs.wrappers import (
    ActionRepeat,
    PyBulletWarmReset,
    RebuildBox2DWorld,
    SymmetricActionBounds,
)
from td3_lightning.errors import EnvError
from td3_lightning.seeding import derive_seed
from td3_lightning.serialization.primitives import as_arrays, to_primitives
from toys import Counter, InPlace, Restless, Seeded, Talkative

ACTION = np.array([0.5], np.float32)


def car(**kwargs: Any) -> gym.Env[Any, Any]:
    return ActionRepeat(Pedals(gym.make("td3_lightning/CarRacing-v0", **kwargs)), 4)


def simulator(package: str, env_id: str) -> gym.Env[Any, Any]:
    pytest.importorskip(package)
    return gym.make(env_id)


# How to make it, and how many steps an episode may take here.
WORLDS: dict[str, tuple[Callable[[], gym.Env[Any, Any]], int]] = {
    "pendulum": (lambda: gym.make("Pendulum-v1", max_episode_steps=40), 40),
    "lander": (lambda: gym.make("LunarLanderContinuous-v3"), 300),
    "windy lander": (lambda: gym.make("LunarLanderContinuous-v3", enable_wind=True), 300),
    "walker": (lambda: RebuildBox2DWorld(gym.make("BipedalWalker-v3", max_episode_steps=60)), 60),
    "car, one track": (lambda: car(track_seed=123, stall_limit=100), 50),
    "car, any track": (lambda: car(max_episode_steps=70), 18),
    "seeded toy": (Seeded, 8),
    "MuJoCo walker": (lambda: simulator("mujoco", "Walker2d-v5"), 12),
    "PyBullet walker": (
        lambda: PyBulletWarmReset(simulator("pybullet", "pybullet_envs_gymnasium:Walker2DBulletEnv-v0")),
        10,
    ),
}


# ActionRepeat


def test_action_repeat_sums_rewards() -> None:
    env = ActionRepeat(Counter(length=10), 4)
    env.reset()
    assert [env.step(ACTION)[:2][1] for _ in range(2)] == [1 + 2 + 3 + 4, 5 + 6 + 7 + 8]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_action_repeat_stops_at_episode_end(end: str) -> None:
    env = ActionRepeat(Counter(length=6, end=end), 4)
    env.reset()
    env.step(ACTION)
    obs, reward, terminated, truncated, info = env.step(ACTION)
    assert (obs.tolist(), reward, info["steps"]) == ([0, 6, 6], 5 + 6, 6)
    assert (terminated, truncated) == (end == "terminated", end == "truncated")


# SymmetricActionBounds


def test_symmetric_bounds_clip_to_action_space() -> None:
    env = SymmetricActionBounds(Counter(low=(-0.5, 0.0), high=(1.5, 1.0)), 1.25)
    assert (env.action_space.low.tolist(), env.action_space.high.tolist()) == ([-1.25, -1.25], [1.25, 1.25])
    env.reset()
    Counter.log.clear()
    for action in ([1.25, -1.25], [-1.25, 1.25], [0.25, 0.75]):
        env.step(np.array(action, np.float32))
    assert [given.tolist() for _, given in Counter.log] == [[1.25, 0.0], [-0.5, 1.0], [0.25, 0.75]]


# TrainingVectorEnv


@pytest.mark.parametrize("kind", [Counter, InPlace, Seeded])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_vector_env_matches_single_environments(kind: type[Counter], num_envs: int) -> None:
    """Compare with environments that are stepped one by one and reset explicitly."""
    envs, alone = TrainingVectorEnv(EnvList(kind, num_envs)), [kind() for _ in range(num_envs)]
    envs.reset()
    seeds = [derive_seed("training environment", i) for i in range(num_envs)]
    obs = [env.reset(seed=seed)[0].copy() for env, seed in zip(alone, seeds, strict=True)]
    returns, lengths, ends = [0.0] * num_envs, [0] * num_envs, [0] * num_envs
    rng = np.random.default_rng(2)
    for _ in range(60):
        np.testing.assert_array_equal(envs.obs, obs)
        action = rng.uniform(-0.5, 1.5, (num_envs, 1)).astype(np.float32)
        step, reports = envs.step(action.copy()), []
        for i, env in enumerate(alone):
            last, reward, terminated, truncated, info = env.step(action[i].copy())
            np.testing.assert_array_equal(step.last_obs[i], last)  # not the observation of the reset
            assert (step.reward[i], step.terminated[i], step.truncated[i]) == (reward, terminated, truncated)
            returns[i], lengths[i] = returns[i] + float(reward), lengths[i] + 1
            obs[i] = last.copy()
            if terminated or truncated:
                reports.append(
                    {"return": returns[i], "length": lengths[i], "steps": info["steps"], "even": info["even"]}
                )
                ends[i] += 1
                obs[i] = env.reset(seed=episode_seed(seeds[i], ends[i]))[0].copy()
                returns[i], lengths[i] = 0.0, 0
        assert step.reports == reports
    assert sum(ends) >= 7 * num_envs
    assert envs.obs.dtype == step.last_obs.dtype == np.float32


def test_returned_arrays_do_not_change_later() -> None:
    envs = TrainingVectorEnv(EnvList(InPlace, 2))
    envs.reset()
    before, action = envs.obs, np.ones((2, 1), np.float32)
    step = envs.step(action)
    copies = before.copy(), step.last_obs.copy()
    for _ in range(7):
        envs.step(action)
    np.testing.assert_array_equal(before, copies[0])
    np.testing.assert_array_equal(step.last_obs, copies[1])
    assert action.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("awkward", ["dotted", "own names", "sometimes", "nested"])
def test_report_accepts_any_info(awkward: str) -> None:
    envs = TrainingVectorEnv(EnvList(lambda: Talkative(awkward=awkward, length=2), 2))
    envs.reset()
    for _ in range(4):
        reports = envs.step(np.zeros((2, 1), np.float32)).reports
    assert [report["return"] for report in reports] == [11.0 + 12.0] * 2
    assert [report["length"] for report in reports] == [2.0] * 2
    assert not any(name.startswith("_") for report in reports for name in report)


def test_scalar_info_selects_numbers() -> None:
    info = {"a": 1, "b": True, "c": np.float32(0.5), "d": np.int64(3), "e": np.bool_(False), "f": 2.5}
    others = {"g": "text", "h": None, "i": [1.0], "j": np.zeros(2), "k": {"l": 1}, "m": np.array("text")}
    others |= {"n": np.array(None)}
    assert scalar_info(info | others) == {"a": 1.0, "b": 1.0, "c": 0.5, "d": 3.0, "e": 0.0, "f": 2.5}


# Episodes


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_episode_matches_manual_steps(end: str) -> None:
    env = Counter(length=4, end=end)
    seen: list[list[float]] = []

    def policy(obs: Any) -> Any:
        seen.append(obs.tolist())
        return ACTION

    played = Episode(env, 3).play(policy)
    assert played == {"return": 1 + 2 + 3 + 4, "length": 4, "steps": 4, "even": 1}
    assert seen == [[0, 0, 0], [0, 1, 1], [0, 2, 2], [0, 3, 3]]


def test_endless_evaluation_episode_raises_env_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("td3_lightning.envs.episode.MAX_EPISODE_STEPS", 50)
    with pytest.raises(EnvError, match="has not ended its episode of seed 8 after 50 steps"):
        Episode(Counter(length=10**9), 8).play(lambda _: ACTION)
    assert Episode(gym.make("Pendulum-v1"), 8).play(lambda _: np.zeros(1))["length"] == 200  # it has a time limit


def test_evaluation_episodes_are_seeded() -> None:
    episodes = Episodes(Seeded(), range(5, 9))
    assert len(episodes) == 4
    once, twice = ([episode.play(lambda _: ACTION) for episode in episodes] for _ in range(2))
    assert once == twice
    assert len({played["return"] for played in once}) == 4
    assert once[2] == Episode(Seeded(), 7).play(lambda _: ACTION)


@pytest.mark.parametrize("world", [world for world in WORLDS if world not in ("pendulum", "seeded toy")])
def test_episode_is_independent_of_earlier_episodes(world: str) -> None:
    env = WORLDS[world][0]()
    low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]

    def policy(obs: Any) -> Any:  # depends on every bit of the observation
        share = 0.5 + 0.5 * np.sin(1e3 * np.float64(obs).sum() + np.arange(len(low)))
        return (low + share * (high - low)).astype(np.float32)

    played = [Episode(env, seed).play(policy) for seed in (5, 6, 5)]
    assert played[0] == played[2]
    assert played[0] != played[1] or world == "car, one track"


# RestorableEnv


def restored(env: RestorableEnv, state: Any) -> bool:
    env.saved = state
    return not env.restore()[0]


def through_a_file(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(to_primitives(state, "the state"), file)
    file.seek(0)
    return as_arrays(torch.load(file, weights_only=True))


@pytest.mark.parametrize("seeded", [True, False], ids=["first episode", "third episode"])
@pytest.mark.parametrize("world", WORLDS)
def test_restored_episode_is_bit_exact(world: str, seeded: bool) -> None:
    """The restoring environment has run other episodes. The rest of the episode and the next one are equal."""
    make, longest = WORLDS[world]
    rng = np.random.default_rng(4)
    one, two = RestorableEnv(make()), RestorableEnv(make())
    actions = rng.uniform(one.action_space.low, one.action_space.high, (longest + 5, *one.action_space.shape))
    actions = (0.7 * actions + 0.3 * actions[:1]).astype(one.action_space.dtype)  # with a drift, so that cars move
    one.reset(seed=11)
    for _ in range(0 if seeded else 2):
        for action in actions:
            if any(one.step(action)[2:4]):
                break
        one.reset()
    two.reset(seed=99)
    for action in actions[:7]:
        two.step(action)
    middle = min(longest // 2, 30) if longest > 8 else 3
    for action in actions[:middle]:
        assert not any(one.step(action)[2:4])
    assert restored(two, through_a_file(one.state()))
    np.testing.assert_array_equal(two.obs, one.obs)
    episodes = 0
    for action in [*actions[middle:], *actions]:
        came = [env.step(action) for env in (one, two)]
        np.testing.assert_array_equal(came[0][0], came[1][0])
        assert came[0][1:4] == came[1][1:4]
        assert one.state()["return"] == two.state()["return"]
        if any(came[0][2:4]):
            np.testing.assert_array_equal(one.reset()[0], two.reset()[0])
            episodes += 1
            if episodes == 2:
                break
    assert episodes or "lander" not in world


def test_vector_env_returns_indices_of_lost_episodes() -> None:
    makers = iter([Seeded, Restless, Seeded] * 2)
    envs, again = (TrainingVectorEnv(EnvList(lambda: next(makers)(), 3)) for _ in range(2))
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros((3, 1), np.float32))
    assert again.load_state_dict(through_a_file(envs.state_dict())) == [1]
    np.testing.assert_array_equal(again.obs[[0, 2]], envs.obs[[0, 2]])
    assert again.obs[1, 1] == 0
    steps = [both.step(np.zeros((3, 1), np.float32)) for both in (envs, again)]
    np.testing.assert_array_equal(steps[0].last_obs[[0, 2]], steps[1].last_obs[[0, 2]])

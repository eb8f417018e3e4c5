"""Check the wrappers that add noise to observations and actions."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box

from td3_lightning import ActionNoise, ObservationNoise, UsageError
from td3_lightning.envs.checked import RestorableEnv

ACTION = np.array([0.5], np.float32)
Noisy = type[ObservationNoise] | type[ActionNoise]


class Echo(gym.Env[Any, Any]):
    """Observe the last action, or ones after a reset."""

    observation_space = Box(-10.0, 10.0, (2,), np.float32)
    action_space = Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array(action, np.float32), 0.0, False, False, {}


def rollout(env: gym.Env[Any, Any], steps: int, action: Any, seed: int | None = None) -> np.ndarray:
    """Return the observations of an episode, (steps + 1, n)."""
    first, _ = env.reset(seed=seed)
    return np.array([first, *(env.step(np.array(action, np.float32))[0] for _ in range(steps))])


def test_observation_noise_is_relative() -> None:
    seen = rollout(ObservationNoise(Echo(), 0.1), 4000, [0.5, 2.0], seed=1)[1:]
    assert seen.dtype == np.float32
    assert seen.mean(axis=0) == pytest.approx([0.5, 2.0], rel=0.01)
    assert seen.std(axis=0) == pytest.approx([0.05, 0.2], rel=0.05)
    assert abs(np.corrcoef(seen.T)[0, 1]) < 0.05


def test_action_noise_is_a_fraction_of_the_range() -> None:
    seen = rollout(ActionNoise(Echo(), 0.05), 4000, [0.0, 2.0], seed=1)[1:]
    assert seen.mean(axis=0) == pytest.approx([0.0, 2.0], abs=0.02)
    assert seen.std(axis=0) == pytest.approx([0.1, 0.2], rel=0.05)
    assert abs(np.corrcoef(seen.T)[0, 1]) < 0.05


def test_noisy_actions_stay_within_their_bounds() -> None:
    seen = rollout(ActionNoise(Echo(), 0.5), 200, [1.0, 0.0], seed=1)[1:]
    assert seen[:, 0].max() == 1.0
    assert seen[:, 1].min() == 0.0
    assert seen[:, 0].min() < 1.0 < seen[:, 1].max()


def test_noisy_integers_are_rounded_and_do_not_wrap_around() -> None:
    dtype: Any = np.uint8

    class Bytes(Echo):
        observation_space = Box(0, 255, (4000,), dtype)

        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            super().reset(**kwargs)
            return np.repeat(np.array([3, 250], dtype), 2000), {}

    seen, _ = ObservationNoise(Bytes(), 0.2).reset(seed=1)
    low, high = seen[:2000].astype(float), seen[2000:].astype(float)
    assert seen.dtype == dtype
    assert low.mean() == pytest.approx(3, abs=0.1)  # truncated numbers have a mean of 2.5
    assert low.std() == pytest.approx(0.6, rel=0.2)
    assert high.min() > 50
    assert high.max() == 255


@pytest.mark.parametrize("wrapper", [ObservationNoise, ActionNoise])
def test_noise_depends_on_the_seed_alone(wrapper: Noisy) -> None:
    used, fresh = wrapper(Echo(), 0.1), wrapper(Echo(), 0.1)
    rollout(used, 7, [0.3, 1.5], seed=5)
    first, again = rollout(used, 20, [0.3, 1.5], seed=1), rollout(fresh, 20, [0.3, 1.5], seed=1)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, rollout(fresh, 20, [0.3, 1.5], seed=2))


def play(env: gym.Env[Any, Any], steps: int) -> list[Any]:
    """Step through several episodes and return the observations."""
    seen = []
    for _ in range(steps):
        obs, _, terminated, truncated, _ = env.step(ACTION)
        seen.append(env.reset()[0] if terminated or truncated else obs)
    return seen


@pytest.mark.parametrize("wrapper", [ObservationNoise, ActionNoise])
@pytest.mark.parametrize("steps", [3, 8])  # within the first, seeded episode, and within a later one
def test_episode_with_noise_is_restored_exactly(wrapper: Noisy, steps: int) -> None:
    env, other = (RestorableEnv(wrapper(gym.make("Pendulum-v1", max_episode_steps=5), 0.1)) for _ in range(2))
    env.reset(seed=1)
    play(env, steps)
    other.saved = env.state()
    expected = play(env, 12)
    assert other.restore()[0] == ""
    assert np.array_equal(play(other, 12), expected)


def test_invalid_std_is_refused() -> None:
    with pytest.raises(UsageError, match=r"std of ActionNoise must be .*, got -0\.1\. Use"):
        ActionNoise(Echo(), -0.1)

"""The noise that the robustness tables are measured with."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from benchmarks.observation_noise import ObservationNoise


class Constant(gym.Env[NDArray[np.float32], Any]):
    """Observe the same 10,000 numbers at every step."""

    def __init__(self, value: float) -> None:
        self.observation_space = Box(-10, 10, (10_000,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32)
        self.value = np.full(10_000, value, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.value, {}

    def step(self, action: Any) -> Any:
        return self.value, 0.0, False, False, {}


def observe(value: float, std: float, seed: int = 0) -> NDArray[np.float32]:
    env = ObservationNoise(Constant(value), std)
    env.reset(seed=seed)
    return env.step(None)[0]


def test_noise_is_gaussian_and_relative() -> None:
    for value in (5.0, -0.05):
        relative = observe(value, 0.01).astype(np.float64) / np.float32(value) - 1
        np.testing.assert_allclose([relative.mean(), relative.std()], [0, 0.01], atol=4e-4)
    assert not observe(0.0, 0.01).any()
    assert observe(5.0, 0.01).dtype == np.float32


def test_noise_follows_the_seed_of_the_reset() -> None:
    assert np.array_equal(observe(5.0, 0.01, seed=3), observe(5.0, 0.01, seed=3))
    assert not np.array_equal(observe(5.0, 0.01, seed=3), observe(5.0, 0.01, seed=4))
    assert np.array_equal(observe(5.0, 0.0), Constant(5.0).value)

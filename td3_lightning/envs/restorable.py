"""Wrapper that restores a running episode by replaying its actions."""

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from td3_lightning.envs.checked import CheckedEnv
from td3_lightning.envs.reports import scalar_info

MAX_SEED = 2**31  # some simulators take integers with 32 bits and a sign


class RestorableEnv(CheckedEnv):
    """Record the running episode, so that another process can restore it.

    Simulators cannot be copied, but they are deterministic. Therefore the state consists of the seed of the episode
    and the actions since the reset. Each reset has a seed, because an environment may have random generators that
    cannot be read. The seeds follow from that of the first episode.

    Args:
        env: The environment.
    """

    saved: dict[str, Any] | None = None  # the state that `restore` restores

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.first_seed = 0  # seed of the last reset with a seed
        self.episodes = 0  # episodes since the first seed
        self._actions: list[NDArray[Any]] = []
        self._return = 0.0
        self.obs: NDArray[Any] = np.empty(0)  # the last observation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset with a seed; without one, with the next seed that follows from the first. The info is empty."""
        if seed is not None:
            self.first_seed, self.episodes = seed, 0
        own_seed = seed if seed is not None else episode_seed(self.first_seed, self.episodes)
        self.episodes += 1
        self._actions, self._return = [], 0.0
        self.obs, _ = super().reset(seed=own_seed, options=options)
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, and record the action and the results. Only the last info has values: the report of the episode."""
        own_action = np.array(action)
        self._actions.append(own_action)
        obs, reward, terminated, truncated, info = super().step(own_action.copy())
        self._return += reward  # type: ignore[operator]  # a float
        if terminated or truncated:
            self.obs = np.array(obs)  # the environment may reuse its array in the next reset
            report = scalar_info(info) | {"return": self._return, "length": float(self.steps)}
            return self.obs, reward, terminated, truncated, report
        self.obs = obs
        return obs, reward, terminated, truncated, {}

    def episode_steps(self) -> int:
        """Return the number of steps in the running episode."""
        return self.steps

    def state(self) -> dict[str, Any]:
        """Return the running episode as arrays and Python numbers."""
        actions, obs = np.array(self._actions), np.array(self.obs)
        origin = {"seed": self.seed, "first_seed": self.first_seed, "episodes": self.episodes}
        return {**origin, "actions": actions, "obs": obs, "return": self._return}

    def restore(self) -> tuple[bool, NDArray[Any]]:
        """Replay the episode in `saved`.

        Returns:
            Whether the result is bit-identical, and the last observation. If not, the environment starts a new episode.
        """
        state, self.saved = self.saved or {}, None
        self.reset(seed=state.get("seed", 0))
        self.first_seed, self.episodes = state.get("first_seed", 0), state.get("episodes", 1)
        ended = any(any(self.step(action)[2:4]) for action in state["actions"])
        same = "seed" in state and not ended and np.array_equal(self.obs, state["obs"], equal_nan=True)
        same = same and self._return == state["return"]
        if not same:
            self.reset()
        return bool(same), np.array(self.obs)


def episode_seed(first_seed: int, number: int) -> int:
    """Return the seed of a later episode.

    Args:
        first_seed: Seed of the first episode.
        number: Number of episodes before.
    """
    return int(np.random.SeedSequence([first_seed, number]).generate_state(1)[0]) % MAX_SEED

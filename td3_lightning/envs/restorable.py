"""Wrapper that restores a running episode by replaying its actions."""

import copy
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

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._start: dict[str, Any] = {}
        self._actions: list[NDArray[Any]] = []
        self._return = 0.0
        self.obs: NDArray[Any] = np.empty(0)  # the last observation, a copy because environments may reuse their array
        self._info: dict[str, Any] = {}  # info of the last step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and record the seed of the episode."""
        generator = self.generator_state() if seed is None and self.first_seed is None else {}
        self._actions, self._return = [], 0.0
        obs, info = super().reset(seed=seed, options=options)
        self._start = {"generator": generator} if generator else {} if self.seed is None else {"seed": self.seed}
        self.obs = np.array(obs)
        return self.obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, and record the action and the results."""
        own_action = np.array(action)
        self._actions.append(own_action)
        obs, reward, terminated, truncated, info = super().step(own_action.copy())
        self.obs, self._return = np.array(obs), self._return + float(reward)
        self._info = info
        return self.obs, reward, terminated, truncated, info

    def _next_seed(self) -> int | None:
        """Return the seed of the next episode; None if the first one had none."""
        return None if self.first_seed is None else episode_seed(self.first_seed, self.episodes)

    @property
    def report(self) -> dict[str, float]:
        """Return the return and the length so far, and the numbers in the last `info`."""
        return scalar_info(self._info) | {"return": self._return, "length": float(len(self._actions))}

    def generator_state(self) -> dict[str, Any]:
        """Return the state of the random generator, or an empty dict if it is not a generator of NumPy."""
        return copy.deepcopy(_numpy_state(self.np_random))

    def state_dict(self) -> dict[str, Any]:
        """Return the running episode as arrays and Python numbers."""
        actions = np.array(self._actions)
        origin = {"first_seed": self.first_seed, "episodes": self.episodes}  # for error messages
        return {**self._start, **origin, "actions": actions, "obs": self.obs, "return": self._return}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Replay the episode.

        Returns:
            Whether the result is bit-identical. If not, the environment starts a new episode.
        """
        if "generator" in state:  # of an older version, whose resets had no seeds
            self.first_seed = None
            _set_numpy_state(self.np_random, state["generator"])
        self.reset(seed=state.get("seed"))
        self.first_seed, self.episodes = state.get("first_seed"), state.get("episodes", 1)
        ended = any(any(self.step(action)[2:4]) for action in state["actions"])
        same = not ended and np.array_equal(self.obs, state["obs"], equal_nan=True)
        same = same and self._return == state.get("return", self._return)  # a vector environment saves none
        if not same:
            self.reset()
        return same


def episode_seed(first_seed: int, number: int) -> int:
    """Return the seed of a later episode.

    Args:
        first_seed: Seed of the first episode.
        number: Number of episodes before.
    """
    return int(np.random.SeedSequence([first_seed, number]).generate_state(1)[0]) % MAX_SEED


def _numpy_state(rng: Any) -> dict[str, Any]:
    if isinstance(rng, np.random.RandomState):  # that of dm_control
        return rng.get_state(legacy=False)
    return rng.bit_generator.state if hasattr(rng, "bit_generator") else {}


def _set_numpy_state(rng: Any, state: dict[str, Any]) -> None:
    if isinstance(rng, np.random.RandomState):
        rng.set_state(state)
    else:
        rng.bit_generator.state = state

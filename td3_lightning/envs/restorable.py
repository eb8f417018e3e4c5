"""Wrapper that restores a running episode by replaying its actions."""

import copy
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from td3_lightning.envs.checked import CheckedEnv
from td3_lightning.envs.reports import scalar_info


class RestorableEnv(CheckedEnv):
    """Record the running episode, so that another process can restore it.

    Simulators cannot be copied, but they are deterministic. Therefore the state consists of the state of the random
    generator before the reset and the actions since then.

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
        """Reset, and record the seed or the generator state of the episode."""
        self._start = {} if seed is None else {"seed": seed}
        if seed is None and (generator := self.generator_state()):
            self._start["generator"] = generator
        self._actions, self._return = [], 0.0
        obs, info = super().reset(seed=seed, options=options)
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
        if "generator" in state:
            _set_numpy_state(self.np_random, state["generator"])
        self.reset(seed=state.get("seed"))
        self.first_seed, self.episodes = state.get("first_seed"), state.get("episodes", 1)
        ended = any(any(self.step(action)[2:4]) for action in state["actions"])
        same = not ended and np.array_equal(self.obs, state["obs"], equal_nan=True)
        same = same and self._return == state.get("return", self._return)  # a vector environment saves none
        if not same:
            self.reset()
        return same


def _numpy_state(rng: Any) -> dict[str, Any]:
    if isinstance(rng, np.random.RandomState):  # that of dm_control
        return rng.get_state(legacy=False)
    return rng.bit_generator.state if hasattr(rng, "bit_generator") else {}


def _set_numpy_state(rng: Any, state: dict[str, Any]) -> None:
    if isinstance(rng, np.random.RandomState):
        rng.set_state(state)
    else:
        rng.bit_generator.state = state

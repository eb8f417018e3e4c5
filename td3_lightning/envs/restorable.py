"""Wrapper that restores a running episode from the reset's random state and the actions since."""

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from td3_lightning.envs.checked import CheckedEnv
from td3_lightning.envs.reports import scalar_info
from td3_lightning.serialization.primitives import as_arrays, to_primitives


class RestorableEnv(CheckedEnv):
    """Remembers how the running episode came about, so that it can be brought back in another process.

    Simulators cannot be copied, but they are deterministic: the generator's state before the reset and
    the actions since are the state.

    Args:
        env: The environment.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._start: dict[str, Any] = {}
        self._actions: list[NDArray[Any]] = []
        self._return = 0.0
        self.obs: NDArray[Any] = np.empty(0)  # what came last, kept from environments that write into theirs
        self._info: dict[str, Any] = {}  # of the last step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets, and notes the seed or the generator that the episode comes from."""
        self._start = {"seed": seed} if seed is not None else self._generator_state()
        self._actions, self._return = [], 0.0
        obs, info = super().reset(seed=seed, options=options)
        self.obs = np.array(obs)
        return self.obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps, and notes the action and what came."""
        self._actions.append(np.array(action))
        obs, reward, terminated, truncated, info = super().step(np.array(action))
        self.obs, self._return = np.array(obs), self._return + float(reward)
        self._info = info
        return self.obs, reward, terminated, truncated, info

    @property
    def report(self) -> dict[str, float]:
        """Return and length so far, and the numbers of the last step's `info`."""
        return scalar_info(self._info) | {"return": self._return, "length": float(len(self._actions))}

    def _generator_state(self) -> dict[str, Any]:
        """Where its generator stands; nothing for one of another kind, such as numpy's old `RandomState`."""
        bits = getattr(self.np_random, "bit_generator", None)
        return {} if bits is None else {"generator": to_primitives(bits.state, "the generator")}

    def state_dict(self) -> dict[str, Any]:
        """The episode so far, as tensors and plain numbers."""
        actions = torch.tensor(np.array(self._actions))
        origin = {"first_seed": self.first_seed, "episodes": self.episodes}  # for the sentence of a fault
        return {**self._start, **origin, "actions": actions, "obs": torch.tensor(self.obs), "return": self._return}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Plays the episode again; False, after a fresh reset, if it does not come out the same to the bit."""
        if "generator" in state:
            self.np_random.bit_generator.state = as_arrays(state["generator"])
        self.reset(seed=state.get("seed"))
        self.first_seed, self.episodes = state.get("first_seed"), state.get("episodes", 1)
        ended = any(any(self.step(action)[2:4]) for action in state["actions"].numpy())
        same = not ended and np.array_equal(self.obs, state["obs"].numpy(), equal_nan=True)
        same = same and self._return == state.get("return", self._return)  # older checkpoints lack it
        if not same:
            self.reset()
        return same

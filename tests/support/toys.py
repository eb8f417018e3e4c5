"""Small environments with predictable observations and rewards."""

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete


class Counter(gym.Env[Any, Any]):
    """Observe (episode, steps since the reset, total steps). An episode ends after `length` steps.

    The reward is 10 * episode + steps since the reset. The class attribute `log` records every action, so that tests
    can read it through wrappers and vector environments.
    """

    log: list[tuple[str, Any]] = []  # noqa: RUF012

    def __init__(
        self,
        length: int = 5,
        end: str = "terminated",
        low: tuple[float, ...] = (-0.5,),
        high: tuple[float, ...] = (1.5,),
        bad: tuple[str, int] | None = None,
        value: float = float("nan"),
    ) -> None:
        self.length, self.end, self.bad, self.value = length, end, bad, value
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Box(np.array(low, np.float32), np.array(high, np.float32))
        self.episode, self.steps, self.total = -1, 0, 0

    def _obs(self) -> Any:
        return np.array([self.episode, self.steps, self.total], np.float32)

    def _corrupt(self, field: str, value: Any) -> Any:
        """Add `value` to a field at the step or the reset that `bad` names."""
        clock = self.episode if field == "reset" else self.total
        return value + self.value if self.bad == (field, clock) else value

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        self.log.append(("reset", self.episode))
        return self._corrupt("reset", self._obs()), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps, self.total = self.steps + 1, self.total + 1
        self.log.append(("step", np.array(action)))
        ended = self.steps >= self.length
        reward = self._corrupt("reward", 10.0 * self.episode + self.steps)
        return (
            self._corrupt("obs", self._obs()),
            reward,
            ended and self.end == "terminated",
            ended and self.end == "truncated",
            self._info(),
        )

    def _info(self) -> dict[str, Any]:
        return {"steps": self.steps, "even": self.steps % 2 == 0, "word": "no number"}


class Seeded(Counter):
    """Draw the length, the first observation and the rewards of an episode from the environment's generator."""

    start = 0.0

    def _obs(self) -> Any:
        return np.array([self.start, self.steps, self.length], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length, self.start = int(self.np_random.integers(4, 9)), float(self.np_random.normal())
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(self.np_random.normal()), terminated, truncated, info


class Restless(Counter):
    """Observe a random number that no seed controls, so that the environment is not deterministic."""

    randomness = np.random.default_rng()

    def _obs(self) -> Any:
        return np.array([self.episode, self.steps, self.randomness.random()], np.float32)


class InPlace(Counter):
    """Return the same array at every step, and overwrite the received actions."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.buffer = np.zeros(3, np.float32)

    def _obs(self) -> Any:
        self.buffer[:] = super()._obs()
        return self.buffer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        step = super().step(action)
        action *= 0.0
        return step


class Talkative(Counter):
    """Return infos with names and values that are difficult to report."""

    def __init__(self, awkward: str = "dotted", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.awkward = awkward

    def _info(self) -> dict[str, Any]:
        return {
            "dotted": {"TimeLimit.truncated": True},
            "own names": {"return": -1.0, "length": -2.0},
            "sometimes": {"first_only": 1.0} if self.episode == 0 else {},
            "nested": {"episode": {"r": 1.0, "l": 2}},
        }[self.awkward]


class Obedient(Seeded):
    """Fail in the way that the action selects: raise, hang, exit, or die."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        order = int(action[0])
        if order == 1:
            raise OSError("gone")
        if order == 2:
            time.sleep(60)
        if order == 4:
            os._exit(7)
        if order == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Spaces(Counter):
    """Declare other spaces than Counter, and check the actions against them."""

    def __init__(self, action: str = "box", observation: str = "box", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = {
            "box": self.action_space,
            "discrete": Discrete(3),
            "unbounded": Box(-np.inf, np.inf, (1,)),
            "half bounded": Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32)),
            "float64 max": Box(-1e300, 1e300, (1,), np.float64),
            "2-d": Box(-1, 1, (2, 2)),
            "0-d": Box(-1, 1, ()),
            "int": Box(-2, 3, (1,), np.int64),
            "float64": Box(-0.1, 0.7, (1,), np.float64),
        }[action]
        self.observation_space = {
            "box": self.observation_space,
            "multi_discrete": MultiDiscrete([2, 3]),
            "dict": Dict({"a": Box(-1, 1, (1,))}),
            "int": Box(0, 2**31 - 1, (3,), np.int64),
            "float64": Box(-np.inf, np.inf, (3,), np.float64),
        }[observation]

    def _obs(self) -> Any:
        return super()._obs().astype(self.observation_space.dtype)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        return super().step(action)


for kind in (Counter, Seeded, Restless, InPlace, Talkative, Spaces):
    gym.register(id=f"toys/{kind.__name__}-v0", entry_point=kind, disable_env_checker=True)

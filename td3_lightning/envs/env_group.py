"""Environments that one process steps in turn."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from td3_lightning.envs.lifetime import close_env
from td3_lightning.envs.restorable import RestorableEnv


class Step(NamedTuple):
    """Hold one step of all training environments."""

    obs: NDArray[np.float32]  # (num_envs, obs_dim), before the step
    action: NDArray[np.float32]  # (num_envs, action_dim)
    reward: list[float]  # one per environment, as for the next two fields
    terminated: list[bool]
    truncated: list[bool]
    last_obs: NDArray[np.float32]  # (num_envs, obs_dim), before any reset
    reports: list[dict[str, float]]  # one per episode that ended
    resets: NDArray[np.bool_] | None = None  # (num_envs,), environments that were reset instead of stepped, if any

    @property
    def stepped(self) -> Sequence[int]:
        """Return the indices of the environments that took a step."""
        return range(len(self.reward)) if self.resets is None else np.flatnonzero(~self.resets).tolist()

    def state_dict(self) -> dict[str, Any]:
        """Return the step without `resets`, which workers do not have, as arrays and Python numbers."""
        return {name: value for name, value in self._asdict().items() if name != "resets"}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Step":
        """Return the step of a state."""
        return cls(**{name: value for name, value in state.items() if name in cls._fields})


class Envs(Protocol):
    """The training environments, in this process or in others."""

    spaces: list[tuple[gym.Space[Any], gym.Space[Any]]]  # observations and actions, per environment or for all
    obs: NDArray[np.float32]  # (num_envs, obs_dim), the input of the next actions

    def reset(self, seeds: Sequence[int]) -> None:
        """Start an episode in each environment."""

    def begin(self, action: NDArray[np.float32]) -> None:
        """Begin a step of each environment. The next call must be `finish` or `close`."""

    def finish(self) -> Step:
        """Finish the step, and reset the environments whose episode ends."""

    def episode_steps(self) -> list[int]:
        """Return the number of steps in the running episode of each environment."""

    def states(self) -> list[dict[str, Any]]:
        """Return the running episode of each environment as arrays and Python numbers."""

    def generators(self) -> list[str]:
        """Return the kind of the random generator that each restored episode sets, for example "PCG64"."""

    def restore(self, states: Sequence[dict[str, Any]]) -> list[bool]:
        """Restore the running episodes, and return which of them are bit-identical."""

    def close(self) -> None:
        """Close all environments."""


class EnvGroup:
    """Step several environments in this process, and reset each one in the step that ends its episode.

    Gymnasium's `SyncVectorEnv` does the same more slowly.

    Args:
        make: Function that makes one environment.
        indices: Numbers of the environments in error messages.
        on_turn: Called with the position of an environment in the group before it is stepped, reset or restored.
    """

    def __init__(
        self, make: Callable[[], gym.Env], indices: Iterable[int], on_turn: Callable[[int], None] | None = None
    ) -> None:
        self.envs: list[RestorableEnv] = []
        self.obs = self._action = np.empty((0, 0), np.float32)
        self._on_turn = on_turn
        try:
            for index in indices:
                env = RestorableEnv(make())
                env.name = f"Environment {index} of {env.name}"
                self.envs.append(env)
        except BaseException:  # a constructor may raise anything
            self.close()
            raise
        self.spaces = [(env.observation_space, env.action_space) for env in self.envs]

    def reset(self, seeds: Sequence[int]) -> None:
        """Start an episode in each environment.

        Args:
            seeds: One seed per environment.
        """
        obs = []
        for place, (env, seed) in enumerate(zip(self.envs, seeds, strict=True)):
            if self._on_turn is not None:
                self._on_turn(place)
            obs.append(env.reset(seed=seed)[0])
        self.obs = np.array(obs, np.float32)

    def begin(self, action: NDArray[np.float32]) -> None:
        """Set the actions (num_envs, action_dim) of the next step."""
        self._action = action

    def finish(self) -> Step:
        """Step each environment, and reset those whose episode ends.

        Raises:
            EnvError: An environment failed.
        """
        before, last_obs = self.obs, np.empty_like(self.obs)
        rewards, terminations, truncations, reports, resets = [], [], [], [], []
        for place, env in enumerate(self.envs):  # iterating over an array is slower than indexing it
            if self._on_turn is not None:
                self._on_turn(place)
            last_obs[place], reward, terminated, truncated, _ = env.step(self._action[place])
            rewards.append(float(reward))
            terminations.append(terminated)
            truncations.append(truncated)
            if terminated or truncated:
                reports.append(env.report)
                resets.append((place, env.reset()[0]))
        self.obs = last_obs.copy() if resets else last_obs
        for place, obs in resets:
            self.obs[place] = obs
        return Step(before, self._action, rewards, terminations, truncations, last_obs, reports)

    def episode_steps(self) -> list[int]:
        """Return the number of steps in the running episode of each environment."""
        return [env.steps for env in self.envs]

    def states(self) -> list[dict[str, Any]]:
        """Return the running episode of each environment as arrays and Python numbers."""
        return [env.state_dict() for env in self.envs]

    def generators(self) -> list[str]:
        """Return the kind of the random generator of each environment."""
        return [env.generator_state().get("bit_generator", "none") for env in self.envs]

    def restore(self, states: Sequence[dict[str, Any]]) -> list[bool]:
        """Replay the running episodes.

        Returns:
            Whether each result is bit-identical. If not, the environment starts a new episode.
        """
        same = []
        for place, (env, state) in enumerate(zip(self.envs, states, strict=True)):
            if self._on_turn is not None:
                self._on_turn(place)
            same.append(env.load_state_dict(state))
        self.obs = np.stack([env.obs for env in self.envs]).astype(np.float32)
        return same

    def close(self) -> None:
        """Close all environments, even if one of them fails."""
        for env in self.envs:
            close_env(env, env.name)

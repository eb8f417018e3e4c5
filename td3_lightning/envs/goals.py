"""Goals in the observations of an environment, and its rewards and terminations for other goals."""

import contextlib
import logging
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary, flatdim
from numpy.typing import NDArray

from td3_lightning.envs.wrappers import structured_space
from td3_lightning.errors import EnvError, UsageError, described, shown
from td3_lightning.seeding import isolated_seed

log = logging.getLogger(__name__)
Array = NDArray[Any]
KEYS = ("achieved_goal", "desired_goal")
DISTANCES = (0.0, 0.001, 0.01, 0.1, 1.0, 10.0)  # between the goals that show whether a function accepts batches


class GoalFunction:
    """Call `compute_reward` or `compute_terminated` of an environment with batches, or in a loop if it requires it.

    Args:
        env: The environment.
        name: Name of the function.
        space: Space of a goal.
        goals: Examples of achieved and desired goals, (n, goal) each, some reached and some not.

    Raises:
        NotImplementedError: The function is abstract.
        EnvError: The environment has no such function, or it raised another exception.
    """

    def __init__(self, env: gym.Env, name: str, space: Any, goals: tuple[Array, Array]) -> None:
        self._space, self._takes_batches = space, False
        try:
            self._function = env.get_wrapper_attr(name)
            expected = self(*goals)
        except NotImplementedError:
            raise
        except Exception as error:
            raise EnvError(f"{name} raised {described(error)}. Correct it, or remove data.her.") from error
        self._takes_batches, self.depends_on_goals = True, True
        with contextlib.suppress(Exception):  # a function of single goals may raise anything
            results = self(*goals)
            self.depends_on_goals = results.ndim > 0
            if np.allclose(np.broadcast_to(results, len(expected)), expected, equal_nan=True):
                return
        self._takes_batches, self.depends_on_goals = False, True
        log.warning("%s accepts one goal at a time, which makes data.her slower.", name)

    def __call__(self, achieved: Array, desired: Array) -> Array:
        """Return the results for achieved and desired goals (n, goal): (n,), or () if they do not depend on goals."""
        goals = self._shaped(achieved), self._shaped(desired)
        if self._takes_batches:
            return np.asarray(self._function(*goals, {}))
        return np.array([self._function(*pair, {}) for pair in zip(*goals, strict=True)]).reshape(len(achieved))

    def _shaped(self, goals: Array) -> Array:
        """Return goals in the shape and, for integers, in the type of the space."""
        is_float, shape = self._space.dtype.kind == "f", self._space.shape
        return (goals if is_float else goals.astype(self._space.dtype)).reshape(-1, *shape)


class Goals:
    """Locate the goals in flat observations, and compute the outcomes of other goals.

    Args:
        env: Environment with flat observations, which is reset once.
        name: Name of the environment in messages.

    Attributes:
        achieved: Place of the achieved goal in a flat observation.
        desired: Place of the desired goal.
        reward: Return rewards (n,), given achieved and desired goals (n, goal).
        terminated: Return whether episodes terminate (n,), given the same; None if the environment does
            not define terminations, or none depends on the goals.

    Raises:
        UsageError: The environment has no goals.
        EnvError: The environment has no function `compute_reward`, or a function of goals raised an exception.
    """

    def __init__(self, env: gym.Env, name: str) -> None:
        self.name, space = name, structured_space(env)
        parts = space.spaces if isinstance(space, Dict) else {}
        goals = [part for key in KEYS if isinstance(part := parts.get(key), Box | MultiBinary)]
        if len(goals) < len(KEYS) or goals[0].shape != goals[1].shape:
            raise UsageError(
                "data.her must have observations in a Dict, with achieved_goal and desired_goal of one shape, got "
                f"{shown(space or env.observation_space)} of {name}. Remove data.her."
            )
        ends = dict(zip(parts, np.cumsum([flatdim(part) for part in parts.values()]).tolist(), strict=True))
        self.achieved, self.desired = (slice(ends[key] - flatdim(goals[0]), ends[key]) for key in KEYS)
        with isolated_seed():
            examples = self._examples(env.reset(seed=0)[0])
        self.reward = GoalFunction(env, "compute_reward", goals[0], examples)
        self.terminated: GoalFunction | None = None
        if env.has_wrapper_attr("compute_terminated"):
            with contextlib.suppress(NotImplementedError):  # of gymnasium_robotics.core.GoalEnv
                function = GoalFunction(env, "compute_terminated", goals[0], examples)
                self.terminated = function if function.depends_on_goals else None

    def _examples(self, obs: Array) -> tuple[Array, Array]:
        """Return achieved and desired goals, (n, goal) each, some reached and some not, given an observation."""
        achieved = obs[self.achieved]
        desired = np.stack([obs[self.desired], *(achieved + distance for distance in DISTANCES)])
        return np.tile(achieved, (len(desired), 1)), desired

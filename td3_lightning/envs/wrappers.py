"""Environment wrappers: actions, flat observations, stacked frames, and fixes that make resets reproducible."""

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, TransformObservation

from td3_lightning.errors import UsageError, require_float, require_int
from td3_lightning.serialization.observation_parts import describe_space

CHANNELS = 3  # colors of a frame


class ActionRepeat(gym.Wrapper):
    """Repeat each action for several frames and sum their rewards.

    Args:
        env: The environment to wrap.
        repeat: Frames per action, at least 1.

    Raises:
        UsageError: `repeat` is smaller than 1.
    """

    def __init__(self, env: gym.Env, repeat: int) -> None:
        super().__init__(env)
        self.repeat = require_int("repeat of ActionRepeat", repeat, least=1, fix="Use 1 for no change.")

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step until the last frame or the end of the episode, and return the sum of the rewards."""
        total = 0.0
        for _ in range(self.repeat):
            obs, reward, terminated, truncated, info = self.env.step(np.array(action))
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class SymmetricActionBounds(gym.Wrapper):
    """Accept actions in [-bound, bound] and clip them to the action space of the environment.

    The original TD3 has one `max_action` for all dimensions. With this wrapper, weights from programs that clip actions
    produce the same actions here.

    Args:
        env: The environment to wrap. Its action space must be a `Box`.
        bound: Largest magnitude of an action, greater than 0.

    Raises:
        UsageError: `bound` is not greater than 0.
    """

    def __init__(self, env: gym.Env, bound: float = 1.0) -> None:
        super().__init__(env)
        bound = require_float("bound of SymmetricActionBounds", bound, above=0, fix="Use 1, for example.")
        self.box: Any = env.action_space
        self.action_space = Box(-bound, bound, self.box.shape, np.float32)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step with the clipped action."""
        return self.env.step(np.clip(action, self.box.low, self.box.high))


class FlattenAction(gym.Wrapper):
    """Accept actions with one axis for an environment whose actions have no axis or several axes.

    Args:
        env: The environment to wrap. Its action space must be a `Box`.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        box: Any = env.action_space
        self.box, self.action_space = box, Box(box.low.ravel(), box.high.ravel(), dtype=box.dtype.type)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step with the action in its original shape."""
        return self.env.step(np.reshape(action, self.box.shape))


class RebuildBox2DWorld(gym.Wrapper):
    """Create a new Box2D world for BipedalWalker at every reset.

    A used world keeps some state, so an episode would depend on earlier episodes.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment in a new world."""
        walker: Any = self.unwrapped
        walker._destroy()
        walker.world = type(walker.world)()
        return self.env.reset(seed=seed, options=options)


class PyBulletWarmReset(gym.Wrapper):
    """Reset a PyBullet robot once more before its first episode.

    The positions of the links are out of date after loading. Without the additional reset, the first reward of the
    first episode differs from that of a later episode with the same seed. All processes use the same seed for the
    additional reset, because later resets start from its state.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._is_warm = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, twice the first time."""
        if not self._is_warm:
            before = self.np_random.bit_generator.state
            self.env.reset(seed=0)
            self.np_random.bit_generator.state = before
            self._is_warm = True
        return self.env.reset(seed=seed, options=options)


def stack_frames(env: gym.Env, stack: int, height: int, width: int) -> gym.Env:
    """Stack the last frames into one vector of bytes. At a reset, the first frame fills the stack.

    Args:
        env: An environment whose observations are frames (height, width, 3) of bytes.
        stack: Number of frames per observation.
        height: Number of rows to keep, from the top of a frame.
        width: Number of columns to keep, from the center of a frame.

    Raises:
        UsageError: The observations are not frames, or the frames are too small.
    """
    space: Any = env.observation_space
    smallest = Box(0, 255, (height, width, CHANNELS), np.uint8)
    frames = isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[2] == CHANNELS
    if not frames or space.shape[0] < height or space.shape[1] < width:
        raise UsageError(
            f"data.pixels requires frames of bytes of at least {smallest.shape}, got {space}. Omit data.pixels, or "
            "reduce its height and width."
        )
    left = (space.shape[1] - width) // 2

    def crop(frame: Any) -> Any:
        """Return a copy, because the environment may reuse its array. Other values than bytes raise a TypeError."""
        return np.asarray(frame)[:height, left : left + width].astype(np.uint8, casting="safe")

    env = TransformObservation(env, crop, smallest)
    return FlattenObservation(FrameStackObservation(env, stack) if stack > 1 else env)


def with_flat_observations(env: gym.Env) -> gym.Env:
    """Concatenate the parts of each observation, as Gymnasium's `FlattenObservation` does. A `Box` is unchanged.

    The order is that of `env.observation_space`. A `Dict` that is made from a dict has sorted keys. Discrete parts
    become one-hot. Spaces with text, graphs, sequences or frames stay as they are.
    """
    space = getattr(env, "observation_space", None)
    return env if isinstance(space, Box) or not _can_be_flat(space) else FlatObservations(env)


class FlatObservations(FlattenObservation):
    """Concatenate the parts of each observation. Only this package adds this wrapper, after those of the user."""

    def observation(self, observation: Any) -> Any:
        """Return the flat observation; raise `ValueError` if a discrete number is out of its range."""
        _check_range(self.env.observation_space, observation)
        return super().observation(observation)


def _check_range(space: Space[Any], value: Any) -> None:
    """Check discrete numbers. Gymnasium's flatten puts the one of a number below its range at a wrong place."""
    if isinstance(space, Dict | Tuple):
        for name, part in space.items() if isinstance(space, Dict) else enumerate(space):
            _check_range(part, value[name])
    elif isinstance(space, Discrete | MultiDiscrete):
        offset, size = np.asarray(value) - space.start, space.n if isinstance(space, Discrete) else space.nvec
        if not ((offset >= 0) & (offset < size)).all():
            raise ValueError(f"an observation must be in {space}, got {value}")


def observation_parts(env: gym.Env) -> dict[str, Any] | None:
    """Describe the observations before this package flattened them, see `describe_space`; None if it did not."""
    space = structured_space(env)
    return None if space is None else describe_space(space)


def structured_space(env: gym.Env) -> Space[Any] | None:
    """Return the space of the observations before this package flattened them; None if it did not."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, FlatObservations):
            return env.env.observation_space
        env = env.env
    return None


def _can_be_flat(space: Space[Any] | None) -> bool:
    if isinstance(space, Dict | Tuple):
        parts = space.spaces.values() if isinstance(space, Dict) else space.spaces
        return bool(parts) and all(map(_can_be_flat, parts))
    if isinstance(space, Box):
        return not (len(space.shape) == 3 and space.dtype == np.uint8)
    return isinstance(space, Discrete | MultiDiscrete | MultiBinary)

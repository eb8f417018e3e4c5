"""Environment wrappers: action repeat, symmetric action bounds, and fixes that make resets reproducible."""

from typing import Any, SupportsFloat, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from td3_lightning.errors import UsageError, require_float, require_int


class ActionRepeat(gym.Wrapper):
    """Holds each action for several frames and sums their rewards.

    Args:
        env: The environment to wrap.
        repeat: Frames for one action, at least 1.
    """

    def __init__(self, env: gym.Env, repeat: int) -> None:
        super().__init__(env)
        self.repeat = require_int("repeat of ActionRepeat", repeat, least=1, fix="Use 1 for no change.")

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """The last frame's observation and info, the sum of the rewards, and any frame's end."""
        total = 0.0
        for _ in range(self.repeat):
            obs, reward, terminated, truncated, info = self.env.step(np.array(action))
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class SymmetricActionBounds(gym.Wrapper):
    """Takes every action in [-bound, bound] and clips it to the box, as the original TD3's one `max_action` does.

    So that weight files of programs that clip, such as the car notebook, act here as they do there.

    Args:
        env: The environment to wrap.
        bound: Largest action in either direction, above 0.
    """

    def __init__(self, env: gym.Env, bound: float = 1.0) -> None:
        super().__init__(env)
        bound = require_float("bound of SymmetricActionBounds", bound, above=0, fix="Use 1, for example.")
        self.box = cast(Box, env.action_space)
        self.action_space = Box(-bound, bound, self.box.shape, np.float32)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps with the clipped action."""
        return self.env.step(np.clip(action, self.box.low, self.box.high))


class FlattenAction(gym.Wrapper):
    """Accept actions with one axis for an environment whose actions have several, or none.

    Args:
        env: The environment to wrap, whose actions are a `Box`.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.box = env.action_space
        if not isinstance(self.box, Box):
            raise UsageError(f"FlattenAction requires actions in a Box, got {self.box}. Use another environment.")
        self.action_space = Box(self.box.low.ravel(), self.box.high.ravel(), dtype=self.box.dtype.type)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step with the action in its original shape."""
        return self.env.step(np.reshape(action, self.box.shape))


class RebuildBox2DWorld(gym.Wrapper):
    """Gives BipedalWalker a new Box2D world at every reset.

    Something stays behind in a used one, so that an episode would depend on those before it.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets in an empty world."""
        walker: Any = self.unwrapped
        walker._destroy()
        walker.world = type(walker.world)()
        return self.env.reset(seed=seed, options=options)


class PyBulletWarmReset(gym.Wrapper):
    """Gives a robot of PyBullet a reset before its first episode that nobody sees.

    Where its links are is out of date after loading, so that the first reward of its first episode would be another
    than in a later one from the same seed. The reset has one seed in all processes, for its state is what all
    later resets begin from.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._settled = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets, the first time twice."""
        if not self._settled:
            before = self.np_random.bit_generator.state
            self.env.reset(seed=0)
            self.np_random.bit_generator.state = before
            self._settled = True
        return self.env.reset(seed=seed, options=options)

    def close(self) -> None:
        """Closes; what is loaded anew after that has to settle again."""
        self._settled = False
        self.env.close()

"""Wrapper that stacks the last frames into one observation."""

from collections import deque
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from td3_lightning.errors import UsageError

CHANNELS = 3  # colors of a frame


class FrameStack(gym.Wrapper):
    """Stack the last frames into one vector of bytes. At a reset, the first frame fills the stack.

    Args:
        env: An environment whose observations are frames (height, width, 3) of bytes.
        stack: Number of frames per observation.
        height: Number of rows to keep, from the top of a frame.
        width: Number of columns to keep, from the center of a frame.

    Raises:
        UsageError: The observations are not frames, or the frames are too small.
    """

    def __init__(self, env: gym.Env, stack: int, height: int, width: int) -> None:
        super().__init__(env)
        left = (_frame_width(env, height, width) - width) // 2
        self._crop = (slice(height), slice(left, left + width))
        self._frames: deque[NDArray[np.uint8]] = deque(maxlen=stack)
        self.observation_space = Box(0, 255, (stack * height * width * CHANNELS,), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and fill the stack with the first frame."""
        frame, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([self._cropped(frame)] * (self._frames.maxlen or 0))
        return self._stacked(), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and replace the oldest frame."""
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(self._cropped(frame))
        return self._stacked(), reward, terminated, truncated, info

    def _cropped(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if frame.dtype != np.uint8:  # the replay buffer would round them to zeros and ones
            raise UsageError(f"data.pixels requires frames of bytes, got {frame.dtype}. Correct the environment.")
        return frame[self._crop].copy()  # the environment may reuse the array

    def _stacked(self) -> NDArray[np.uint8]:
        return np.concatenate([frame.ravel() for frame in self._frames])


def _frame_width(env: gym.Env, height: int, width: int) -> int:
    """Return the width of the environment's frames, or raise `UsageError` if they are not frames of this size."""
    space = env.observation_space
    frames = isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[2] == CHANNELS
    if not frames or space.shape[0] < height or space.shape[1] < width:  # type: ignore[index]  # a Box here
        raise UsageError(
            f"data.pixels requires frames of bytes of at least {(height, width, CHANNELS)}, got {space}. Omit "
            "data.pixels, or reduce its height and width."
        )
    return int(space.shape[1])  # type: ignore[index]

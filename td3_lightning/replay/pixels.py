"""Replay buffer for stacked frames, with random shifts (Kostrikov et al., 2020)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from td3_lightning.errors import UsageError, require_int
from td3_lightning.replay.batch import Batch
from td3_lightning.replay.buffer import Array, Replay

CHANNELS = 3  # colors of a frame


@dataclass(frozen=True)
class Pixels:
    """Define how frames become observations: the last `stack` frames, cropped, oldest first, as one axis of bytes.

    Args:
        stack: Frames in an observation.
        height: Rows of a frame to keep, from the top.
        width: Columns of a frame to keep, from the center.
        shift: Largest random shift of sampled frames in pixels, in each direction; 0 disables it.

    Raises:
        UsageError: A setting is too small, or the size of a frame is not a multiple of 4 bytes.
    """

    stack: int = 4
    height: int = 84
    width: int = 84
    shift: int = 4

    def __post_init__(self) -> None:
        for name, least in (("stack", 1), ("height", 1), ("width", 1), ("shift", 0)):
            number = require_int(f"pixels.{name}", getattr(self, name), least=least)
            object.__setattr__(self, name, number)
        if self.frame_bytes % 4:
            raise UsageError(
                f"pixels.height * pixels.width must be a multiple of 4, got {self.height} * {self.width}. Change one."
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of a frame: rows, columns, colors."""
        return (self.height, self.width, CHANNELS)

    @property
    def frame_bytes(self) -> int:
        """Return the size of a frame in bytes."""
        return self.height * self.width * CHANNELS


class PixelReplay(Replay):
    """Store each frame once, as bytes; stack and shift the frames when a batch is sampled.

    A row holds the newest frame of an observation, with its bytes viewed as float32, and the number of earlier frames
    of the episode, which limits the stack. `obs_dim` is the width of this part of a row. `add` takes stacks (bytes,),
    and `sample` returns stacks (batch, bytes), with bytes = stack * height * width * 3.

    Args:
        pixels: Settings of the frames.
        **settings: Arguments of `Replay`.
    """

    def __init__(self, pixels: Pixels, **settings: Any) -> None:
        self.pixels = pixels
        super().__init__(pixels.frame_bytes // 4 + 1, history=pixels.stack - 1, **settings)

    def add(
        self, env: int, obs: Array, action: Array, reward: float, terminated: bool, truncated: bool, next_obs: Array
    ) -> None:
        """Store one step of environment `env`, with only the newest frame of each stack of bytes."""
        ring = self.rings[env]
        age = ring.rows[ring.cursor, self.obs_dim - 1] if ring.running else 0.0
        super().add(env, self._pack(obs, age), action, reward, terminated, truncated, self._pack(next_obs, age + 1))

    def _pack(self, stack: Array, age: float) -> Array:
        """Return the newest frame of a stack, with its bytes viewed as float32, and its age."""
        frame = np.asarray(stack[-self.pixels.frame_bytes :], np.uint8)
        return np.append(frame.view(np.float32), np.float32(min(age, self.pixels.stack - 1)))

    def sample(self) -> Batch:
        """Sample a batch of stacks (batch, bytes), each with its own random shift."""
        rows = self._draw()
        windows, reward, discount, steps = self._transitions(rows)
        return Batch(
            obs=self._shifted(self._stacks(rows)),
            action=torch.from_numpy(windows[:, 0, self.obs_dim : -2]),
            reward=torch.from_numpy(reward),
            discount=torch.from_numpy(discount),
            next_obs=self._shifted(self._stacks(rows + torch.from_numpy(steps))),
        )

    def _stacks(self, rows: Tensor) -> Tensor:
        """Return the stacks (batch, stack, height, width, 3) whose newest frames are in the given rows."""
        age = self.rows[rows, self.obs_dim - 1].long()
        back = torch.arange(self.pixels.stack - 1, -1, -1).minimum(age[:, None])
        length = self.rings[0].length
        ring, slot = rows // (length + self.n_step), rows % (length + self.n_step)
        numbers = ring[:, None] * (length + self.n_step) + (slot[:, None] - back) % length
        frames = self.rows.view(torch.uint8)[:, : self.pixels.frame_bytes]
        return frames[numbers.flatten()].view(len(rows), self.pixels.stack, *self.pixels.shape)

    def _shifted(self, stacks: Tensor) -> Tensor:
        """Shift each stack at random, with its edge pixels as padding (Kostrikov et al., 2020)."""
        most, (height, width, _) = self.pixels.shift, self.pixels.shape
        if not most:
            return stacks.flatten(1)
        padded = _pad_edges(stacks, most)
        corners = torch.randint(2 * most + 1, (self.batch_size, 2), generator=self.generator)  # top left, (batch, 2)
        pairs = zip(padded, corners.tolist(), strict=True)
        moved = [stack[:, y : y + height, x : x + width] for stack, (y, x) in pairs]
        return torch.stack(moved).flatten(1)


def _pad_edges(stacks: Tensor, most: int) -> Tensor:
    """Pad stacks (batch, stack, height, width, 3) by repeating their outermost pixels `most` times on every side."""
    batch, stack, height, width, channels = stacks.shape
    padded = stacks.new_empty(batch, stack, height + 2 * most, width + 2 * most, channels)
    middle = padded[:, :, :, most:-most]
    middle[:, :, most:-most] = stacks
    middle[:, :, :most], middle[:, :, -most:] = stacks[:, :, :1], stacks[:, :, -1:]
    padded[:, :, :, :most], padded[:, :, :, -most:] = middle[:, :, :, :1], middle[:, :, :, -1:]
    return padded

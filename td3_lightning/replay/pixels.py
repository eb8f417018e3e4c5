"""Replay buffer for stacked frames: each frame is stored once and shifted at random when it is sampled."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.errors import UsageError, require_int
from td3_lightning.replay.buffer import Batch, Replay, SampledIndices

CHANNELS = 3


SMALLEST = 36  # rows and columns that three convolutions leave something of


@dataclass(frozen=True)
class Pixels:
    """How frames become observations: the last `stack` of them, cropped, the oldest first, as one axis of bytes.

    Args:
        stack: Frames in an observation.
        height: Rows that are kept of a frame, from the top.
        width: Columns that are kept of a frame, from the middle.
        shift: Pixels by which the learner's frames are shifted at most, in each direction; 0 leaves them.
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
        """Of a frame: rows, columns, colours."""
        return (self.height, self.width, CHANNELS)

    @property
    def frame_bytes(self) -> int:
        """Bytes of a frame."""
        return self.height * self.width * CHANNELS


class PixelReplay(Replay):
    """A replay of frames, each stored once, as bytes; stacks are put together and shifted when a batch is drawn.

    A row holds the newest frame of an observation, its bytes taken for float32, and how many frames of its episode came
    before it, which is as far back as its stack may reach.

    Args:
        pixels: The frames.
        **settings: What `Replay` takes besides.
    """

    def __init__(self, pixels: Pixels, **settings: Any) -> None:
        self.pixels = pixels
        super().__init__(pixels.frame_bytes // 4 + 1, history=pixels.stack - 1, **settings)

    def add(
        self,
        env: int,
        obs: NDArray[np.float32],
        action: NDArray[np.float32],
        reward: float,
        terminated: bool,
        truncated: bool,
        next_obs: NDArray[np.float32],
    ) -> None:
        """Stores one step of environment `env`, of the observations (obs_dim,) only their newest frame."""
        ring = self.rings[env]
        age = ring.rows[ring.cursor, self.obs_dim - 1] if ring.running else 0.0
        rows = self._packed(obs, age), self._packed(next_obs, age + 1)
        super().add(env, rows[0], action, reward, terminated, truncated, rows[1])

    def _packed(self, stack: NDArray[np.float32], age: float) -> NDArray[np.float32]:
        frame = stack[-self.pixels.frame_bytes :].astype(np.uint8)
        return np.append(frame.view(np.float32), np.float32(min(age, self.pixels.stack - 1)))

    def sample(self) -> Batch:
        """Draws a batch of stacks (batch, obs_dim) of bytes, each shifted by an amount of its own."""
        rows = self._draw()
        windows, reward, discount, steps = self._transitions(rows)
        return Batch(
            obs=self._shifted(self._stacks(self.rows, rows)),
            action=torch.from_numpy(windows[:, 0, self.obs_dim : -2]),
            reward=torch.from_numpy(reward),
            discount=torch.from_numpy(discount),
            next_obs=self._shifted(self._stacks(self.rows, rows + torch.from_numpy(steps))),
        )

    def sample_indices(self) -> SampledIndices:
        """Draws the shifts too."""
        places, outcomes = super().sample_indices()
        return SampledIndices(torch.cat([places, self._corners().T, self._corners().T]), outcomes)

    def read(self, rows: Tensor, choice: SampledIndices) -> Batch:
        """The batch that `sample` would have given."""
        first, later, top, left, next_top, next_left = choice.places
        reward, discount = choice.outcomes
        obs = _crop_at(self._stacks(rows, first), top, left, self.pixels.shift)
        next_obs = _crop_at(self._stacks(rows, later), next_top, next_left, self.pixels.shift)
        return Batch(obs, rows[first, self.obs_dim : -2], reward, discount, next_obs)

    def _stacks(self, all_rows: Tensor, rows: Tensor) -> Tensor:
        """Stacks (batch, stack, height, width, 3) that end with the frames in these of all rows."""
        age = all_rows[rows, self.obs_dim - 1].long()
        back = torch.arange(self.pixels.stack - 1, -1, -1, device=rows.device).minimum(age[:, None])
        length = self.rings[0].length
        ring, slot = rows // (length + self.n_step), rows % (length + self.n_step)
        numbers = ring[:, None] * (length + self.n_step) + (slot[:, None] - back) % length
        frames = all_rows.view(torch.uint8)[:, : self.pixels.frame_bytes]
        return frames[numbers.flatten()].view(len(rows), self.pixels.stack, *self.pixels.shape)

    def _corners(self) -> Tensor:
        """Where (batch, 2) each stack is looked at from, of one with edges."""
        shape, most = (self.batch_size, 2), self.pixels.shift
        return torch.randint(2 * most + 1, shape, generator=self.generator) if most else torch.zeros(shape).long()

    def _shifted(self, stacks: Tensor) -> Tensor:
        """Moves each stack as a whole; its edge's pixels fill what is laid bare (Kostrikov et al., 2020)."""
        most, (height, width, _) = self.pixels.shift, self.pixels.shape
        if not most:
            return stacks.flatten(1)
        framed, corners = _with_edges(stacks, most), self._corners().tolist()
        moved = [stack[:, y : y + height, x : x + width] for stack, (y, x) in zip(framed, corners, strict=True)]
        return torch.stack(moved).flatten(1)


def _crop_at(stacks: Tensor, tops: Tensor, lefts: Tensor, most: int) -> Tensor:
    """Stacks (batch, stack, height, width, 3) of bytes moved by corners (batch,), in few operations for a GPU."""
    batch, stack, height, width, _ = stacks.shape
    y = (torch.arange(height, device=tops.device) + tops[:, None] - most).clamp(0, height - 1)
    x = (torch.arange(width, device=tops.device) + lefts[:, None] - most).clamp(0, width - 1)
    each, frame = torch.arange(batch, device=tops.device), torch.arange(stack, device=tops.device)
    return stacks[each[:, None, None, None], frame[:, None, None], y[:, None, :, None], x[:, None, None]].flatten(1)


def _with_edges(stacks: Tensor, most: int) -> Tensor:
    """Stacks (batch, stack, height, width, 3) with their outermost pixels repeated `most` times on every side."""
    batch, stack, height, width, channels = stacks.shape
    framed = stacks.new_empty(batch, stack, height + 2 * most, width + 2 * most, channels)
    middle = framed[:, :, :, most:-most]
    middle[:, :, most:-most] = stacks
    middle[:, :, :most], middle[:, :, -most:] = stacks[:, :, :1], stacks[:, :, -1:]
    framed[:, :, :, :most], framed[:, :, :, -most:] = middle[:, :, :, :1], middle[:, :, :, -1:]
    return framed

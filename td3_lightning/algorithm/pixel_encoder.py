"""Convolutional encoder for stacked frames."""

import numpy as np
import torch
from torch import Tensor, nn

from td3_lightning.algorithm.encoders import Encoder
from td3_lightning.errors import UsageError, require_bool, require_int

CHANNELS = 3  # colors of a frame
MIN_SIDE = 36  # smallest height and width for the three convolutions


class Convolutions(Encoder):
    """Three convolutions over stacked frames, then a linear layer, layer norm and tanh.

    The kernels and strides are those of Mnih et al. (2015), with 16, 32 and 32 channels. The layers after them are
    those of Yarats et al. (2021).

    Args:
        features: Number of features of a stack.
        stack: Frames in an observation, as in `Pixels`.
        height: Rows of a frame.
        width: Columns of a frame.
        shared: Whether the actor uses the critics' features instead of a separate encoder.

    Raises:
        UsageError: A size is too small.
    """

    def __init__(
        self, features: int = 64, stack: int = 4, height: int = 84, width: int = 84, shared: bool = True
    ) -> None:
        self.features = require_int("Convolutions.features", features, least=1)
        self.stack = require_int("Convolutions.stack", stack, least=1)
        self.height = require_int("Convolutions.height", height, least=MIN_SIDE)
        self.width = require_int("Convolutions.width", width, least=MIN_SIDE)
        self.shared = require_bool("Convolutions.shared", shared)

    def build(self, obs_dim: int) -> nn.Module:
        """Build the layers."""
        shape = (self.stack, self.height, self.width, CHANNELS)
        if obs_dim != np.prod(shape):
            raise UsageError(
                f"Convolutions require observations of {shape} bytes, got {obs_dim} numbers. Use the same stack, "
                "height and width for data.pixels and this encoder."
            )
        convolutions = nn.Sequential(
            Planes(shape),
            *(nn.Conv2d(self.stack * CHANNELS, 16, 8, stride=4), nn.ReLU()),
            *(nn.Conv2d(16, 32, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3), nn.ReLU()),
            nn.Flatten(-3),
        )
        with torch.no_grad():
            numbers = convolutions(torch.zeros(1, obs_dim)).shape[1]
        return nn.Sequential(convolutions, nn.Linear(numbers, self.features), nn.LayerNorm(self.features), nn.Tanh())


class Planes(nn.Module):
    """Convert bytes (..., stack * height * width * 3) to planes (..., stack * 3, height, width) in [-0.5, 0.5]."""

    middle: Tensor

    def __init__(self, shape: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.shape = shape  # stack, height, width, 3
        # A buffer follows the parameters to their device and dtype.
        self.register_buffer("middle", torch.tensor(0.5), persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the planes in the precision of floating-point inputs, or of the network for bytes."""
        stacks = obs.view(*obs.shape[:-1], *self.shape).movedim(-1, -3).flatten(-4, -3)
        return (stacks if stacks.is_floating_point() else stacks.to(self.middle.dtype)) / 255 - self.middle

"""Convert the images that an environment renders to video frames: 8-bit RGB of one size."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from td3_lightning.errors import UsageError, one_line

Frame = NDArray[np.uint8]  # (height, width, 3)
MIN_SIDE, MAX_SIDE = 16, 4096  # in pixels; the pixels of smaller images are repeated, those of larger ones subsampled
DEFAULT_FPS, MIN_FPS, MAX_FPS = 30.0, 0.01, 1000.0
ROUNDING = 1e-3  # tolerance above 1 for float images


class FrameReader:
    """Convert the results of an environment's `render()` to RGB frames of the size of the first frame.

    Grayscale, RGBA, channels-first, bool, integer and float images are converted. Floats are read as 0 to 1. After a
    frame with a value above 1, they are read as 0 to 255. The alpha channel is dropped. A frame of another size is
    scaled to the size of the first frame.

    Args:
        name: Name of the environment in errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._scale = 255.0  # of float images
        self._size: tuple[int, int] | None = None  # height and width

    def read(self, rendered: Any) -> Iterator[Frame]:
        """Yield the frames in a rendered image or a list of images.

        Raises:
            UsageError: The result is not an image.
        """
        for image in self._images(rendered):
            rgb = self._as_bytes(self._as_rgb(image))
            if self._size is None:
                self._size = _side(rgb.shape[0]), _side(rgb.shape[1])
            yield np.ascontiguousarray(_scaled(rgb, self._size))

    def _images(self, rendered: Any) -> Iterator[NDArray[Any]]:
        if isinstance(rendered, list | tuple) and all(getattr(image, "ndim", 0) >= 2 for image in rendered):
            for image in rendered:
                yield from self._images(image)
        else:
            array = self._as_array(rendered)
            yield from array if array.ndim == 4 else [array]

    def _as_array(self, image: Any) -> NDArray[Any]:
        try:
            array = np.asarray(image)
        except (TypeError, ValueError, RuntimeError) as error:  # a ragged list, or a tensor on a GPU
            raise self._refusal(f"{type(image).__name__} ({one_line(error)})") from error
        if array.dtype.kind not in "buif":
            raise self._refusal("None" if image is None else f"values of type {array.dtype}")
        return array

    def _as_rgb(self, array: NDArray[Any]) -> NDArray[Any]:
        """Convert an image to the shape (height, width, 3)."""
        shape = array.shape
        if array.ndim == 2:
            array = array[..., None]
        if array.ndim == 3 and array.shape[-1] > 4 and array.shape[0] in (1, 3, 4):
            array = np.moveaxis(array, 0, -1)
        if array.ndim != 3 or not 1 <= array.shape[-1] <= 4 or not array.size:
            raise self._refusal(f"shape {shape}")
        return np.repeat(array[..., :1], 3, axis=-1) if array.shape[-1] < 3 else array[..., :3]

    def _as_bytes(self, rgb: NDArray[Any]) -> Frame:
        if rgb.dtype == np.uint8:
            return rgb
        if rgb.dtype.kind == "b":
            return rgb.astype(np.uint8) * np.uint8(255)
        if rgb.dtype.kind == "f":
            return self._from_floats(np.nan_to_num(rgb.astype(np.float64), posinf=math.inf, neginf=-math.inf))
        if rgb.min() < 0 or rgb.max() > 255:
            raise self._refusal(f"integers from {rgb.min()} to {rgb.max()}")
        return rgb.astype(np.uint8)

    def _from_floats(self, rgb: NDArray[np.float64]) -> Frame:
        if rgb.max() > 1 + ROUNDING:
            self._scale = 1.0
        scaled = rgb * self._scale
        if not -1 <= scaled.min() <= scaled.max() <= 256:
            raise self._refusal(f"floats from {rgb.min():g} to {rgb.max():g}")
        return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)

    def _refusal(self, got: str) -> UsageError:
        return UsageError(
            f"render() of {self.name} must return an image of shape (height, width), (height, width, 3) or (height, "
            f"width, 4) with values from 0 to 255, or floats from 0 to 1, got {got}. Use another environment, or a "
            "wrapper that overrides render()."
        )


def frames_per_second(value: Any) -> float:
    """Convert an environment's `render_fps`. Return 30 if it is not a positive number."""
    try:
        fps = float(value)
    except (TypeError, ValueError, OverflowError):
        return DEFAULT_FPS
    return min(max(fps, MIN_FPS), MAX_FPS) if fps > 0 and math.isfinite(fps) else DEFAULT_FPS


def _side(length: int) -> int:
    """Choose a side of a video from that of its first frame. h264 requires even sides, and players limit the size."""
    if length < MIN_SIDE:
        length *= math.ceil(MIN_SIDE / length)
    return math.ceil(length / math.ceil(length / MAX_SIDE)) // 2 * 2


def _scaled(rgb: Frame, size: tuple[int, int]) -> Frame:
    """Scale by repeating or dropping rows and columns. One extra row or column is cut off, without scaling."""
    for axis, (length, target) in enumerate(zip(rgb.shape[:2], size, strict=True)):
        if length not in (target, target + 1):
            rgb = rgb.take(np.arange(target) * length // target, axis)
    return rgb[: size[0], : size[1]]

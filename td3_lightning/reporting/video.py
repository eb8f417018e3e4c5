"""Record videos of greedy episodes without a window."""

import contextlib
import copy
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.episode import Episode
from td3_lightning.errors import RunError, UsageError
from td3_lightning.reporting.paths import absolute
from td3_lightning.training.data_module import ReplayData

Frame = NDArray[np.uint8]  # (height, width, 3)
OPTIONS = ["-vf", "crop=trunc(iw/2)*2:trunc(ih/2)*2", "-crf", "20"]  # h264 requires even sizes


class Video(NamedTuple):
    """Describe a recorded episode."""

    path: Path
    episode_return: float
    frames: int


class Mp4:
    """Encode frames one by one with ffmpeg.

    Args:
        path: Absolute path of the file. ffmpeg would read the relative path "12:30.mp4" as a protocol.
        fps: Frames per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self.fps, self.frames = path, fps, 0
        self._encoder: Generator[None, Frame, None] | None = None
        self._shape: tuple[int, ...] = ()

    def write(self, frame: Frame) -> None:
        """Encode a frame."""
        if self._encoder is None:
            self._shape, size = frame.shape, (frame.shape[1], frame.shape[0])
            settings = {"macro_block_size": 1, "quality": None, "ffmpeg_log_level": "error", "output_params": OPTIONS}
            self._encoder = imageio_ffmpeg.write_frames(str(self.path), size, fps=self.fps, **settings)
            next(self._encoder)
        if frame.shape != self._shape:
            raise UsageError(f"render() must return images of one size, got {frame.shape} after {self._shape}.")
        with contextlib.suppress(OSError, StopIteration):  # `finish` reports that ffmpeg has ended
            self._encoder.send(frame)
        self.frames += 1

    def finish(self) -> None:
        """Close the file, and raise `RunError` unless it is complete."""
        self.close()
        written = 0
        with contextlib.suppress(RuntimeError):  # no video
            written, _ = imageio_ffmpeg.count_frames_and_secs(str(self.path))
        if written != self.frames:
            raise RunError(
                f"ffmpeg must write a complete video, got none in {self.path.parent} after {self.frames} frames. Check "
                "its output above and the free space of the disk."
            )

    def close(self) -> None:
        """Wait until the encoder has finished the file."""
        if self._encoder is not None:
            self._encoder.close()


def as_frame(rendered: Any) -> Frame:
    """Convert a rendered image, (height, width, 3 or 4) of integers, to (height, width, 3) of uint8.

    Raises:
        UsageError: It is not an image.
    """
    frame = np.asarray(rendered)
    if frame.dtype.kind not in "iu" or frame.ndim != 3:
        got = f"shape {frame.shape} of {frame.dtype}"
        raise UsageError(
            f"render() must return an image (height, width, 3), got {got}. Override render() in a wrapper."
        )
    return np.ascontiguousarray(frame[..., :3], np.uint8)


class Camera(gym.Wrapper):
    """Record a frame, in the render mode "rgb_array", after every step, also inside a repeated action."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.film: Callable[[Frame], None] | None = None  # destination of the frames

    def step(self, action: Any) -> Any:
        """Step the environment and record a frame."""
        result = self.env.step(action)
        if self.film is not None:
            self.film(as_frame(self.env.render()))
        return result


def record_each(
    module: TD3, data: ReplayData, episodes: int, folder: str | Path, env_kwargs: dict[str, Any] | None = None
) -> Iterator[Video]:
    """Record episodes without exploration noise, with the seeds of `test`, and yield each video after it is complete.

    A file name is, for example, episode-1-return-917.5-frames-825.mp4. `env_kwargs` are additional arguments of the
    environment, for example draw_rays of CarRacing.

    Raises:
        UsageError: The environment cannot render images, or does not accept the keyword arguments.
    """
    folder = absolute("folder", folder)  # before the environment can change the working directory
    camera, env = make_filmed_env(data, env_kwargs or {})
    folder.mkdir(parents=True, exist_ok=True)
    fps = float(env.metadata.get("render_fps") or 30)
    try:
        for number in range(episodes):
            film = Mp4(folder / f".episode-{number + 1}.mp4", fps)
            yield _film(module, camera, Episode(env, data.test_seeds.start + number), film)
    finally:
        env.close()


def _film(module: TD3, camera: Camera, episode: Episode, film: Mp4) -> Video:
    """Play an episode. Give the video its final name after it is complete."""
    camera.film = film.write
    try:
        total = episode.play(module.act)["return"]
        film.finish()
        path = film.path.with_name(f"{film.path.stem[1:]}-return-{total:.1f}-frames-{film.frames}.mp4")
        film.path.replace(path)
        return Video(path, total, film.frames)
    finally:
        film.close()
        film.path.unlink(missing_ok=True)


def make_filmed_env(data: ReplayData, env_kwargs: dict[str, Any]) -> tuple[Camera, gym.Env]:
    """Create the environment with a camera inside the configured wrappers. The errors are those of `record_each`."""
    modes = data.eval_env.metadata.get("render_modes") or []
    if "rgb_array" not in modes:
        raise UsageError(
            f'render_modes of {data.env_id} must contain "rgb_array", got {modes}. Use an environment that renders.'
        )
    filmed = copy.copy(data)
    filmed.wrappers = [Camera, *data.wrappers]
    env = filmed.make_env(**{**env_kwargs, "render_mode": "rgb_array"})
    camera: Any = env
    while not isinstance(camera, Camera):
        camera = camera.env
    return camera, env

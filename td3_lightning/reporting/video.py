"""Record videos of greedy episodes without a window."""

import copy
import os
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import imageio_ffmpeg

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.episode import Episode
from td3_lightning.errors import ExitOnSignal, RunError, UsageError, one_line
from td3_lightning.reporting.frames import Frame, FrameReader, frames_per_second
from td3_lightning.reporting.paths import absolute
from td3_lightning.training.data_module import ReplayData


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
        name: Name of the environment in errors.
    """

    def __init__(self, path: Path, fps: float, name: str) -> None:
        self.path, self.fps, self.frames = path, fps, 0
        self._reader = FrameReader(name)
        self._encoder: Generator[None, Frame | None, None] | None = None

    def write(self, rendered: Any) -> None:
        """Encode an image or a list of images."""
        for frame in self._reader.read(rendered):
            try:
                self._encode(frame)
            except (OSError, RuntimeError) as error:  # ffmpeg failed or is missing
                said = one_line(str(error).split("FFMPEG COMMAND")[0])
                raise RunError(
                    f"ffmpeg failed to write to {self.path.parent}: {said}. See the output of ffmpeg above."
                ) from error
            self.frames += 1

    def _encode(self, frame: Frame) -> None:
        if self._encoder is None:
            height, width = frame.shape[:2]
            # The default, blocks of 16 pixels, would stretch the image.
            self._encoder = imageio_ffmpeg.write_frames(
                str(self.path), (width, height), fps=self.fps, quality=7, macro_block_size=1
            )
            self._encoder.send(None)
        self._encoder.send(frame)

    def finish(self) -> None:
        """Close the file, and raise `RunError` unless it is complete."""
        self.close()
        if not _is_complete(self.path):
            raise RunError(
                f"ffmpeg must write a complete video, got none in {self.path.parent} after {self.frames} frames. Check "
                "the free space of the disk, and that render() returns an image."
            )

    def close(self) -> None:
        """Wait until the encoder has finished the file."""
        if self._encoder is not None:
            self._encoder.close()


def _is_complete(path: Path) -> bool:
    """Return whether an mp4 file has its index. ffmpeg writes the index last."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        while header := file.read(8):
            size, kind = int.from_bytes(header[:4]), header[4:]
            if kind == b"moov":
                return path.stat().st_size >= file.tell() - 8 + size
            size = int.from_bytes(file.read(8)) - 8 if size == 1 else size
            file.seek(max(size - 8, 0), os.SEEK_CUR)
    return False


class Film(Protocol):
    """Destination of rendered frames."""

    def write(self, rendered: Any) -> None:
        """Add an image or a list of images."""


class Camera(gym.Wrapper):
    """Record a frame after every step of the environment, also inside a repeated action.

    Args:
        env: Environment with the render mode "rgb_array".
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.film: Film | None = None  # destination of the frames

    def step(self, action: Any) -> Any:
        """Step the environment and record a frame."""
        result = self.env.step(action)
        if self.film is not None:
            self.film.write(self.env.render())
        return result


def record_each(
    module: TD3, data: ReplayData, episodes: int, folder: str | Path, env_kwargs: dict[str, Any] | None = None
) -> Iterator[Video]:
    """Record episodes without exploration noise, with the seeds of `test`, and yield each video after it is complete.

    Args:
        module: Agent that acts.
        data: Data module that creates the environment with its wrappers.
        episodes: Number of episodes.
        folder: Folder of the videos. A file name is, for example, episode-1-return-917.5-frames-825.mp4.
        env_kwargs: Additional keyword arguments of the environment, for example draw_rays of CarRacing.

    Yields:
        The path, return and number of frames of each video.

    Raises:
        UsageError: The environment cannot render images, or does not accept the keyword arguments.
    """
    folder = absolute("folder", folder)  # before the environment can change the working directory
    camera, env = make_filmed_env(data, env_kwargs or {})
    folder.mkdir(parents=True, exist_ok=True)
    fps = frames_per_second(env.metadata.get("render_fps"))
    seeds = range(data.test_seeds.start, data.test_seeds.start + episodes)
    try:
        with exit_on_signals():
            films = (Mp4(folder / f".episode-{number}.mp4", fps, data.env_id) for number in range(1, episodes + 1))
            for seed, film in zip(seeds, films, strict=True):
                yield _film(module, camera, Episode(env, seed), film)
    finally:
        env.close()


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Convert SIGTERM and SIGHUP to exceptions, so that incomplete videos are deleted."""
    previous = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        previous = {number: handler for number, handler in previous.items() if handler is signal.SIG_DFL}
    for number in previous:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end(number: int, frame: object) -> None:
    raise ExitOnSignal(128 + number)


def _film(module: TD3, camera: Camera, episode: Episode, film: Mp4) -> Video:
    """Play an episode. Give the video its final name after it is complete."""
    camera.film = film
    try:
        total = episode.play(module.act)["return"]
        film.finish()
        path = film.path.with_name(f"{film.path.stem[1:]}-return-{total:.1f}-frames-{film.frames}.mp4")
        film.path.replace(path)
        return Video(path, total, film.frames)
    finally:
        film.close()
        film.path.unlink(missing_ok=True)


def check_renders(data: ReplayData) -> None:
    """Raise `UsageError` if an environment cannot render images."""
    modes = data.eval_env.metadata.get("render_modes") or []
    if "rgb_array" not in modes:
        raise UsageError(
            f'render_modes of {data.env_id} must contain "rgb_array", got {modes}. Use an environment that '
            "renders images."
        )


def make_filmed_env(data: ReplayData, env_kwargs: dict[str, Any]) -> tuple[Camera, gym.Env]:
    """Create the environment with a camera inside the configured wrappers.

    Raises:
        UsageError: The environment cannot render images, or does not accept the keyword arguments.
    """
    check_renders(data)
    cameras: list[Camera] = []

    def film(env: gym.Env) -> gym.Env:
        cameras.append(Camera(env))
        return cameras[-1]

    filmed = copy.copy(data)
    filmed.wrappers = [film, *data.wrappers]
    env = filmed.make_eval_env(**{**env_kwargs, "render_mode": "rgb_array"})
    return cameras[0], env

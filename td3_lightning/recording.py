"""Videos of greedy episodes, drawn without a window."""

import copy
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray

from td3_lightning.data import ReplayData
from td3_lightning.envs import Episode
from td3_lightning.errors import UsageError
from td3_lightning.module import TD3

Frame = NDArray[np.uint8]  # (height, width, 3)


class Video(NamedTuple):
    """A recorded episode."""

    path: Path
    episode_return: float
    frames: int


class Mp4:
    """Encodes frames as they come; none is kept.

    Args:
        path: The file, which is whole once this is closed.
        fps: Frames per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self.fps, self.frames = path, fps, 0
        self._encoder: Generator[None, Frame | None, None] | None = None

    def write(self, frame: Frame) -> None:
        """Adds a frame (height, width, 3); an odd last row or column is cut off, as h264 has even sizes only."""
        height, width = (length // 2 * 2 for length in frame.shape[:2])
        if self._encoder is None:
            # Its default is blocks of 16 pixels, for which it would stretch the picture.
            self._encoder = imageio_ffmpeg.write_frames(
                str(self.path), (width, height), fps=self.fps, quality=7, macro_block_size=1
            )
            self._encoder.send(None)
        self._encoder.send(np.ascontiguousarray(frame[:height, :width]))
        self.frames += 1

    def close(self) -> None:
        """Waits for the encoder to finish the file."""
        if self._encoder is not None:
            self._encoder.close()


class Camera(gym.Wrapper):
    """Films every step of the environment, also those that a wrapper around this makes of one action.

    Args:
        env: An environment that renders "rgb_array".
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.film: Mp4 | None = None  # where the frames go

    def step(self, action: Any) -> Any:
        """Steps, and films what came of it."""
        result = self.env.step(action)
        if self.film is not None:
            self.film.write(np.asarray(self.env.render()))
        return result


def record(
    module: TD3,
    data: ReplayData,
    episodes: int = 3,
    folder: str | Path = "videos",
    env_kwargs: dict[str, Any] | None = None,
) -> list[Video]:
    """Records episodes without exploration noise, from the seeds of `test`.

    Args:
        module: The policy.
        data: Makes the environment, with its wrappers.
        episodes: How many.
        folder: Where the videos go; the names are like episode-1-return-917.5-frames-825.mp4.
        env_kwargs: Further keyword arguments for the environment, such as draw_rays for the car.

    Returns:
        Path, return and number of frames of each.

    Raises:
        UsageError: The environment draws no pictures, or does not take such keyword arguments.
    """
    camera, env = _make_filmed_env(data, env_kwargs or {})
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    fps = float(env.metadata.get("render_fps", 30))
    try:
        seeds = range(data.test_seeds.start, data.test_seeds.start + episodes)
        return [_film(module, camera, Episode(env, seed), folder, fps, n) for n, seed in enumerate(seeds, 1)]
    finally:
        env.close()


def _film(module: TD3, camera: Camera, episode: Episode, folder: Path, fps: float, number: int) -> Video:
    """Plays an episode; its video has its name once it is whole."""
    film = camera.film = Mp4(folder / f".episode-{number}.mp4", fps)
    try:
        total = episode.play(module.act)["return"]
        film.close()
        path = folder / f"episode-{number}-return-{total:.1f}-frames-{film.frames}.mp4"
        film.path.replace(path)
        return Video(path, total, film.frames)
    finally:
        film.close()
        film.path.unlink(missing_ok=True)


def _make_filmed_env(data: ReplayData, env_kwargs: dict[str, Any]) -> tuple[Camera, gym.Env]:
    """Makes the environment with a camera beneath the configured wrappers."""
    modes = data.eval_env.metadata.get("render_modes", [])
    if "rgb_array" not in modes:
        raise UsageError(
            f'{data.env_id} has the render modes {modes}, but a video needs "rgb_array"; '
            "record an environment that has it."
        )
    cameras: list[Camera] = []

    def film(env: gym.Env) -> gym.Env:
        cameras.append(Camera(env))
        return cameras[-1]

    filmed = copy.copy(data)
    filmed.wrappers = [film, *data.wrappers]
    env = filmed.make_env(**{**env_kwargs, "render_mode": "rgb_array"})
    return cameras[0], env

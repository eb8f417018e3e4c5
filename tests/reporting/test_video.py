"""Test that videos contain every frame in order, and that their names give the return and the frames."""

import functools
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest

import toys
from processes import wait_for
from td3_lightning import TD3, ReplayData, UsageError
from td3_lightning.__main__ import run
from td3_lightning.cli.app import main
from td3_lightning.envs.wrappers import ActionRepeat
from td3_lightning.errors import RunError
from td3_lightning.reporting.video import Mp4, as_frame, record_each
from tests.cli.test_app import SMALL


class Painter(toys.Counter):
    """Render a uniform gray of 10 times the steps since the reset."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, height: int = 48, width: int = 64, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.render_mode, self.shape = render_mode, (height, width, 3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.log.append(("seed", seed))
        return super().reset(seed=seed)

    def render(self) -> Any:
        return np.full(self.shape, 10 * self.steps, np.uint8)


gym.register(id="toys/Painter-v0", entry_point=Painter, disable_env_checker=True)


def policy_for(data: ReplayData) -> TD3:
    return TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))


def greys(path: Path) -> tuple[tuple[int, int], float, list[int]]:
    """Read the size, the frames per second and the mean of every frame of a video."""
    reader = imageio_ffmpeg.read_frames(str(path))
    head = next(reader)
    return head["size"], head["fps"], [round(np.frombuffer(frame, np.uint8).mean()) for frame in reader]


def test_video_has_every_frame_in_order(tmp_path: Path) -> None:
    Painter.log.clear()
    data = ReplayData("toys/Painter-v0", {"length": 11}, capacity=10, test_seed=50_070, test_episodes=1)
    videos = list(record_each(policy_for(data), data, episodes=2, folder=tmp_path / "new" / "videos"))
    # The return is 11 * 10 * episode + (1 + 2 + ... + 11).
    assert [(video.path.name, video.episode_return, video.frames) for video in videos] == [
        ("episode-1-return-66.0-frames-11.mp4", 66.0, 11),
        ("episode-2-return-176.0-frames-11.mp4", 176.0, 11),
    ]
    assert sorted(os.listdir(tmp_path / "new" / "videos")) == [video.path.name for video in videos]
    assert [seed for kind, seed in Painter.log if kind == "seed"] == [50_070, 50_071]
    for video in videos:
        size, fps, means = greys(video.path)
        assert (size, fps) == ((64, 48), 25)
        np.testing.assert_allclose(means, np.arange(10, 111, 10), atol=2)


def test_video_has_the_frames_of_repeated_actions(tmp_path: Path) -> None:
    repeat: Any = functools.partial(ActionRepeat, repeat=4)
    data = ReplayData("toys/Painter-v0", {"length": 11}, wrappers=[repeat], capacity=10)
    (video,) = record_each(policy_for(data), data, episodes=1, folder=tmp_path)
    assert video.path.name == "episode-1-return-66.0-frames-11.mp4"
    np.testing.assert_allclose(greys(video.path)[2], np.arange(10, 111, 10), atol=2)
    assert data.wrappers == [repeat]


def test_odd_sizes_are_cropped_to_even_sizes(tmp_path: Path) -> None:
    data = ReplayData("toys/Painter-v0", capacity=10)
    (video,) = record_each(policy_for(data), data, 1, tmp_path, {"height": 51, "width": 73, "length": 3})
    size, _, means = greys(video.path)
    assert size == (72, 50)
    np.testing.assert_allclose(means, [10, 20, 30], atol=2)


@pytest.mark.parametrize("draw_rays", [False, True])
def test_car_is_recorded_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw_rays: bool) -> None:
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    repeat: Any = functools.partial(ActionRepeat, repeat=4)
    settings = {"track_seed": 123, "max_episode_steps": 10}
    data = ReplayData("td3_lightning/CarRacing-v0", settings, wrappers=[repeat], capacity=10)
    (video,) = record_each(policy_for(data), data, 1, tmp_path, {"draw_rays": draw_rays})
    assert video.frames == 10
    reader = imageio_ffmpeg.read_frames(str(video.path))
    assert next(reader)["size"] == (600, 400)
    frames = [np.frombuffer(frame, np.uint8).reshape(400, 600, 3).astype(int) for frame in reader]
    assert len(frames) == 10
    red, green, blue = frames[-1][..., 0], frames[-1][..., 1], frames[-1][..., 2]
    yellow = (red > 180) & (green > 180) & (blue < 100)
    assert (yellow.sum() > 100) == draw_rays


def test_environment_without_rgb_array_is_refused(tmp_path: Path) -> None:
    data = ReplayData("toys/Counter-v0", capacity=10)
    with pytest.raises(
        UsageError, match=r'^render_modes of toys/Counter-v0 must contain "rgb_array", got \[\]\. Use an'
    ):
        list(record_each(policy_for(data), data, 1, tmp_path / "videos"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("rendered", [None, np.zeros((20, 30), np.uint8)])
def test_images_of_another_kind_are_refused(rendered: Any) -> None:
    with pytest.raises(UsageError, match=r"^render\(\) must return an image \(height, width, 3\)"):
        as_frame(rendered)


def test_video_on_a_full_disk_is_an_error(tmp_path: Path) -> None:
    film = Mp4(Path("/dev/full"), 25)
    film.write(np.zeros((48, 64, 3), np.uint8))
    with pytest.raises(RunError, match=r"^ffmpeg must write a complete video, got none in /dev after 1 frames"):
        film.finish()


class Stopped(Painter):
    """Send this process a signal in the middle of an episode, when ffmpeg has begun the file."""

    def step(self, action: Any) -> Any:
        if self.steps == 20 and self.render_mode:
            wait_for(Path("videos", ".episode-1.mp4").exists, 30)
            signal.raise_signal(signal.SIGTERM)
        return super().step(action)


gym.register(id="toys/Stopped-v0", entry_point=Stopped, disable_env_checker=True)


def test_signal_leaves_no_partial_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("here.yaml").write_text("data: {env_id: toys/Painter-v0}\n")
    assert main(["fit", "--config", "here.yaml", *SMALL]) == 0
    words = ["record", "--ckpt_path=lightning_logs/here/version_0/checkpoints/last.ckpt"]
    words += ["--data.env_id=toys/Stopped-v0"]
    words += ["--data.env_kwargs={length: 25, height: 480, width: 640}"]  # ffmpeg makes the file after some megabytes
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            run(words)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    assert os.listdir("videos") == []

"""Test that every image format is converted to a video frame or refused with a clear error."""

from pathlib import Path

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
import torch

from td3_lightning import ReplayData, UsageError
from td3_lightning.cli.app import main
from td3_lightning.errors import RunError
from td3_lightning.reporting.frames import FrameReader, frames_per_second
from td3_lightning.reporting.video import Mp4, record_each
from tests.cli.test_app import SMALL, folder, run  # noqa: F401  # the fixture
from tests.reporting.test_video import Painter, greys, policy_for

GREY = 200
SHAPE = (48, 64)


def image(*channels, dtype=np.uint8, value=GREY):
    return np.full((*SHAPE, *channels), value, dtype)


KINDS = {
    "height, width": image(),
    "one channel": image(1),
    "grey and alpha": image(2),
    "rgb": image(3),
    "rgba": image(4),
    "channels first": np.full((3, *SHAPE), GREY, np.uint8),
    "one channel first": np.full((1, *SHAPE), GREY, np.uint8),
    "rgba first": np.full((4, *SHAPE), GREY, np.uint8),
    "batch of one": np.full((1, *SHAPE, 3), GREY, np.uint8),
    "list of one": [image(3)],
    "tuple of one": (image(3),),
    "nested lists": image(3).tolist(),
    "float32 to 1": image(3, dtype=np.float32, value=GREY / 255),
    "float64 to 1": image(value=GREY / 255, dtype=np.float64),
    "float16 to 1": image(3, dtype=np.float16, value=GREY / 255),
    "float32 to 255": image(3, dtype=np.float32),
    "int64": image(3, dtype=np.int64),
    "uint16": image(3, dtype=np.uint16),
    "tensor": torch.full((*SHAPE, 3), GREY, dtype=torch.uint8),
    "transposed": np.full((SHAPE[1], SHAPE[0], 3), GREY, np.uint8).transpose(1, 0, 2),
    "strided": np.full((96, 128, 3), GREY, np.uint8)[::2, ::-2],
    "reversed channels": image(3)[..., ::-1],
    "read only": np.broadcast_to(np.uint8(GREY), (*SHAPE, 3)),
    "big endian": image(3, dtype=">i4"),
}
REFUSED = {
    "None": (None, "got None"),
    "text": ("no picture", "got values of type <U"),
    "a number": (3.0, r"got shape \(\)"),
    "one axis": (np.zeros(7), r"got shape \(7,\)"),
    "five channels": (np.zeros((48, 64, 5)), r"got shape \(48, 64, 5\)"),
    "five axes": (np.zeros((1, 1, 4, 4, 3)), r"got shape \(1, 1, 4, 4, 3\)"),
    "no pixels": (np.zeros((0, 4, 3)), r"got shape \(0, 4, 3\)"),
    "complex": (np.zeros((4, 4), complex), "got values of type complex128"),
    "ragged": ([[1, 2], [3]], "got list "),
    "objects": (np.full((4, 4), None), "got values of type object"),
    "list with None": ([None], "got values of type object"),
    "beyond 255": (np.full((4, 4, 3), 256), "got integers from 256 to 256"),
    "below 0": (np.full((4, 4, 3), -1), "got integers from -1 to -1"),
    "floats beyond 255": (np.full((4, 4, 3), 1000.0), "got floats from 1000 to 1000"),
    "floats below 0": (np.full((4, 4, 3), -0.5), "got floats from -0.5 to -0.5"),
    "an infinite float": (np.full((4, 4, 3), np.inf), "got floats from inf to inf"),
    "ansi": (["a", "b"], "got values of type"),
}


class Gallery(Painter):
    """Render the images that a test assigns, one for all steps or one for each step."""

    shown = None

    def render(self):
        return self.shown(self.steps) if callable(self.shown) else self.shown


gym.register("toys/Gallery-v0", Gallery, disable_env_checker=True)


@pytest.fixture
def film(tmp_path, monkeypatch):
    """Record an episode of three steps."""

    def record_shown(shown, **kwargs):
        monkeypatch.setattr(Gallery, "shown", staticmethod(shown) if callable(shown) else shown)
        data = ReplayData("toys/Gallery-v0", {"length": 3}, capacity=10)
        (video,) = record_each(policy_for(data), data, 1, tmp_path / "films", **kwargs)
        return video

    return record_shown


@pytest.mark.parametrize("kind", KINDS)
def test_image_is_converted(kind, film):
    video = film(KINDS[kind])
    size, fps, means = greys(video.path)
    assert (size, fps, video.frames, len(means)) == ((64, 48), 25, 3, 3)
    np.testing.assert_allclose(means, GREY, atol=2)


@pytest.mark.parametrize("kind", REFUSED)
def test_result_that_is_not_an_image_is_refused(kind, film, tmp_path):
    shown, got = REFUSED[kind]
    with pytest.raises(UsageError, match=rf"render\(\) of toys/Gallery-v0 must return an image .*{got}.* Use another"):
        film(shown)
    assert not list(tmp_path.rglob("*.mp4"))


def test_colors_and_positions_are_kept(film):
    picture = np.zeros((48, 64, 4), np.float32)
    picture[:24, :32, 0] = picture[:24, 32:, 1] = picture[24:, :32, 2] = 1.0
    reader = imageio_ffmpeg.read_frames(str(film(picture).path))
    assert next(reader)["size"] == (64, 48)
    frame = np.frombuffer(next(reader), np.uint8).reshape(48, 64, 3)
    for row, column, colour in (
        (12, 16, (255, 0, 0)),
        (12, 48, (0, 255, 0)),
        (36, 16, (0, 0, 255)),
        (36, 48, (0, 0, 0)),
    ):
        np.testing.assert_allclose(frame[row, column].astype(int), colour, atol=12)


def test_bool_images_are_black_and_white(film):
    pictures = [np.zeros(SHAPE, bool), np.ones(SHAPE, bool)]
    np.testing.assert_allclose(greys(film(lambda step: pictures[step % 2]).path)[2], [255, 0, 255], atol=2)


def test_float_range_changes_at_the_first_bright_frame(film):
    values = [0.0, 100.0, 1.0]
    means = greys(film(lambda step: np.full((*SHAPE, 3), values[step - 1])).path)[2]
    np.testing.assert_allclose(means, [0, 100, 1], atol=2)


def test_nan_is_black(film):
    np.testing.assert_allclose(greys(film(np.full((*SHAPE, 3), np.nan)).path)[2], 0, atol=2)


def test_list_of_images_gives_several_frames(film):
    video = film(lambda step: [image(3, value=40 * step), image(4, value=40 * step + 20)])
    assert video.frames == 6
    np.testing.assert_allclose(greys(video.path)[2], [40, 60, 80, 100, 120, 140], atol=2)


def test_episode_without_images_is_refused(film, tmp_path):
    with pytest.raises(
        RunError, match=r"got none in .*films after 0 frames\. Check .* that render\(\) returns an image"
    ):
        film([])
    assert not list(tmp_path.rglob("*.mp4"))


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((1, 1), (16, 16)),
        ((2, 3), (18, 16)),
        ((15, 17), (16, 30)),
        ((49, 65), (64, 48)),
        ((16, 5000), (2500, 16)),
        ((4096, 16), (16, 4096)),
    ],
)
def test_video_size_is_even_and_limited(shape, size, film):
    video = film(np.full((*shape, 3), GREY, np.uint8))
    read, _, means = greys(video.path)
    assert read == size
    np.testing.assert_allclose(means, [GREY] * 3, atol=2)


def test_frames_of_another_size_are_scaled_to_the_first(film):
    sizes = [(48, 64), (96, 128), (31, 20)]

    def halves(step):
        height, width = sizes[step - 1]
        picture = np.zeros((height, width, 3), np.uint8)
        picture[:, : width // 2] = GREY
        return picture

    size, _, means = greys(film(halves).path)
    assert size == (64, 48)
    np.testing.assert_allclose(means, GREY / 2, atol=4)


@pytest.mark.parametrize(
    ("given", "fps"),
    [
        (None, 30),
        ("fast", 30),
        (0, 30),
        (-5, 30),
        (float("nan"), 30),
        (float("inf"), 30),
        (10**400, 30),
        ([25], 30),
        ("25", 25),
        (np.int64(50), 50),
        (1e9, 1000),
        (1e-9, 0.01),
    ],
)
def test_frames_per_second(given, fps, film, monkeypatch):
    assert frames_per_second(given) == fps
    monkeypatch.setattr(Gallery, "metadata", {"render_modes": ["rgb_array"], "render_fps": given})
    video = film(image(3))
    assert video.frames == 3
    if 1 <= fps < 1000:  # ffmpeg prints 1000 as "1k", which the reader cannot parse
        assert greys(video.path)[1] == fps


def test_metadata_without_modes_is_refused(film, monkeypatch):
    for metadata in ({}, {"render_modes": None}):
        monkeypatch.setattr(Gallery, "metadata", metadata)
        with pytest.raises(UsageError, match=r"^render_modes of toys/Gallery-v0 must contain "):
            film(image(3))


def test_failed_encoder_is_a_run_error(film, monkeypatch, tmp_path):
    monkeypatch.setattr("imageio_ffmpeg._io.get_ffmpeg_exe", lambda: "/bin/false")
    monkeypatch.setattr("imageio_ffmpeg._io.get_first_available_h264_encoder", lambda: "libx264")
    with pytest.raises(RunError, match=r"ffmpeg (failed to write to|must write a complete video).*films"):
        film(image(3))
    assert not list(tmp_path.rglob("*.mp4"))


def test_video_without_index_is_incomplete(tmp_path):
    film = Mp4(tmp_path / ".episode.mp4", 30, "toy")
    for _ in range(5):
        film.write(image(3))
    film.finish()
    film.path.write_bytes(film.path.read_bytes()[:-100])
    with pytest.raises(RunError, match="ffmpeg must write a complete video, got none in"):
        film.finish()


def test_reader_does_not_modify_the_image():
    picture = np.full((17, 33, 3), 0.5, np.float32)
    before = picture.copy()
    list(FrameReader("toy").read(picture))
    np.testing.assert_array_equal(picture, before)


@pytest.mark.parametrize("name", ["2026-11-25T12:30", "file:x", "-i", "a%03d b'c", "pipe:1", "é ✓"])
def test_unusual_folder_names(name, folder, capsys):  # noqa: F811
    run("fit", "--config", "here.yaml", *SMALL, "--data.env_id=toys/Painter-v0")
    last = "--ckpt_path=lightning_logs/here/version_0/checkpoints/last.ckpt"
    run("record", last, f"--folder={name}", "--episodes=1")
    (video,) = (folder / name).iterdir()
    assert f"{name}/{video.name}: return" in capsys.readouterr().out
    assert len(greys(video)[2]) == 5


def test_invalid_frames_give_one_line_error(folder, capsys, monkeypatch):  # noqa: F811
    run("fit", "--config", "here.yaml", *SMALL, "--data.env_id=toys/Gallery-v0")
    monkeypatch.setattr(Gallery, "shown", np.zeros((48, 64, 7)))
    capsys.readouterr()
    assert main(["record", "--ckpt_path=lightning_logs/here/version_0/checkpoints/last.ckpt"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "render() of toys/Gallery-v0 must return an image" in said
    assert "got shape (48, 64, 7)" in said
    assert list(Path("videos").iterdir()) == []

"""Check the animations of evaluation episodes in TensorBoard."""

import io
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import toys  # noqa: F401  # registers them
from one_sentence import refused
from td3_lightning import TD3, Collector, EvalVideo, ReplayData
from td3_lightning.reporting.eval_video import Animation
from td3_lightning.reporting.logger import RunLogger


class Careless(gym.Env):
    """Use the global generators in the constructor and in render."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gym.spaces.Box(-10, 10, (1,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        np.random.rand(), torch.rand(1)  # noqa: NPY002

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.obs = 0, self.np_random.normal(size=1).astype(np.float32)
        return self.obs, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.obs = np.clip(self.obs + action, -10, 10).astype(np.float32)
        return self.obs, -float(abs(self.obs[0])), False, self.steps == 6, {}

    def render(self) -> Any:
        return np.full((40, 60, 3), int(np.random.rand() * 9) + 20 * self.steps, np.uint8)  # noqa: NPY002


def fit(make_trainer: Any, folder: Path, *callbacks: Any, ckpt_path: Any = None, epochs: int = 4) -> Any:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    data = ReplayData(Careless, steps_per_epoch=13, batch_size=4, capacity=100, eval_episodes=1)
    agent = TD3(1, data.action_low, data.action_high, (4,))
    logger = RunLogger(str(folder), "", "")
    trainer = make_trainer(callbacks=[*callbacks, Collector(10)], logger=logger, max_epochs=epochs)
    trainer.fit(agent, datamodule=data, ckpt_path=ckpt_path)
    trainer.save_checkpoint(folder / "run.ckpt")
    return agent


def gifs(folder: Path) -> dict[int, Image.Image]:
    events = EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()
    found = events.Images("eval/episode") if "eval/episode" in events.Tags()["images"] else []
    return {event.step: Image.open(io.BytesIO(event.encoded_image_string)) for event in found}


def rows(folder: Path) -> list[list[str]]:
    """Return the cells of metrics.csv without the speed."""
    lines = [line.split(",") for line in folder.joinpath("metrics.csv").read_text().splitlines()]
    kept = [place for place, name in enumerate(lines[0]) if "per_second" not in name]
    return [[line[place] for place in kept] for line in lines]


def test_videos_do_not_change_the_run(make_trainer: Any, tmp_path: Path) -> None:
    one = fit(make_trainer, tmp_path / "one")
    state = np.random.rand(), torch.rand(1)  # noqa: NPY002
    other = fit(make_trainer, tmp_path / "other", EvalVideo(every_n_evaluations=2, height=20, max_frames=4))
    assert (np.random.rand(), torch.rand(1)) == state  # noqa: NPY002
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    assert rows(tmp_path / "one") == rows(tmp_path / "other")
    assert gifs(tmp_path / "one") == {}
    found = gifs(tmp_path / "other")
    assert list(found) == [36, 62]  # of the second and the fourth evaluation
    image: Any = found[36]
    assert (image.size, image.n_frames, image.info["duration"]) == ((30, 20), 3, 200)
    brightness = []
    for frame in range(3):
        image.seek(frame)
        brightness.append(image.convert("L").getpixel((0, 0)) // 20)
    assert brightness == [1, 3, 5]  # of the steps


def test_image_of_another_kind_does_not_end_the_run(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Careless, "render", lambda env: np.zeros((40, 60), np.uint8))
    with pytest.warns(UserWarning, match=r"^EvalVideo shows no episode: render\(\) must return .* The run continues\."):
        agent = fit(make_trainer, tmp_path, EvalVideo(every_n_evaluations=1), epochs=2)
    assert agent.updates == 26
    assert gifs(tmp_path) == {}


def test_resumed_run_counts_the_evaluations_before(make_trainer: Any, tmp_path: Path) -> None:
    fit(make_trainer, tmp_path, EvalVideo(every_n_evaluations=2), epochs=1)
    assert gifs(tmp_path) == {}
    fit(make_trainer, tmp_path, EvalVideo(every_n_evaluations=2), epochs=2, ckpt_path=tmp_path / "run.ckpt")
    assert list(gifs(tmp_path)) == [36]


def test_long_episodes_are_thinned_out_evenly() -> None:
    animation = Animation(16, 10)
    for step in range(100):
        animation.write(np.full((16, 16, 3), step, np.uint8))
    shown = [image.getpixel((0, 0))[0] for image in animation.images]  # type: ignore[index]
    assert shown == [0, 16, 32, 48, 64, 80, 96]


@pytest.mark.parametrize("fps", [10, 50, 62.5, 67, 125, 1000])
def test_animation_takes_as_long_as_the_episode(fps: float) -> None:
    """A GIF counts hundredths of a second, and browsers show one hundredth as ten."""
    animation = Animation(16, 200)
    for step in range(200):
        animation.write(np.full((16, 16, 3), step, np.uint8))
    image: Any = Image.open(io.BytesIO(animation.as_gif(fps)))
    durations = []
    for frame in range(image.n_frames):
        image.seek(frame)
        durations.append(image.info["duration"])
    assert min(durations) >= 20
    longest = max(durations)
    assert 1000 * 200 / fps - 10 <= sum(durations) <= 1000 * 200 / fps + longest


def test_environment_must_render_images(make_trainer: Any, tmp_path: Path) -> None:
    data = ReplayData("toys/Seeded-v0", eval_episodes=1)
    trainer = make_trainer(callbacks=[EvalVideo(), Collector(10)])
    with refused("render_modes", "[]"):
        trainer.fit(TD3(3, data.action_low, data.action_high, (4,)), datamodule=data)


@pytest.mark.parametrize("name", ["every_n_evaluations", "height", "max_frames"])
def test_numbers_must_be_positive(name: str) -> None:
    with refused(name, "0"):
        EvalVideo(**{name: 0})

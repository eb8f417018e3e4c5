"""Test that evaluations alone open a window if `train_kwargs` remove it from the training environments."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import toys
from td3_lightning.cli.app import main

FIT = [
    *("--name=window", "--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
    *("--data.steps_per_epoch=4", "--data.batch_size=4", "--data.eval_episodes=1", "--data.test_episodes=1"),
    *("--collector.warmup_steps=10", "--model.hidden_dims=[8,8]", "--data.env_id=toys/Window-v0"),
]
HUMAN = ["--data.env_kwargs={render_mode: human}", "--data.train_kwargs={render_mode: null}"]
CONFIG = "lightning_logs/window/version_0/config.yaml"
LAST = "lightning_logs/window/version_0/checkpoints/last.ckpt"


class Window(toys.Counter):
    """Record the render mode of each environment that was reset."""

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 25}  # noqa: RUF012
    modes: list[str | None] = []  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, wide: bool = False) -> None:
        super().__init__(high=(2.5 if wide else 1.5,))
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.modes.append(self.render_mode)
        return super().reset(seed=seed)

    def render(self) -> Any:
        return np.zeros((48, 64, 3), np.uint8)


gym.register(id="toys/Window-v0", entry_point=Window, disable_env_checker=True)


@pytest.fixture
def modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Work in an empty folder, and return the render modes of all resets."""
    monkeypatch.chdir(tmp_path)
    Window.modes.clear()
    return Window.modes


def test_evaluations_open_a_window_and_training_does_not(modes: list[str | None]) -> None:
    assert main(["fit", *FIT, *HUMAN]) == 0
    assert modes.count("human") == 1  # one evaluation of one episode
    assert modes[0] is None
    assert modes.count(None) >= 3  # 14 training steps, 5 in an episode
    assert set(modes) == {None, "human"}


def test_resumed_runs_and_test_use_the_stored_arguments(modes: list[str | None]) -> None:
    assert main(["fit", *FIT, *HUMAN]) == 0
    modes.clear()
    assert main(["fit", "--config", CONFIG, "--ckpt_path", LAST, "--trainer.max_epochs=2"]) == 0
    assert modes.count("human") == 1
    for command in ("test", "validate"):
        modes.clear()
        assert main([command, "--ckpt_path", LAST]) == 0
        assert modes == ["human"], command
    modes.clear()
    assert main(["test", "--ckpt_path", LAST, "--data.env_kwargs", "null"]) == 0
    assert modes == [None]


def test_record_renders_images(modes: list[str | None]) -> None:
    assert main(["fit", *FIT, *HUMAN]) == 0
    modes.clear()
    assert main(["record", "--ckpt_path", LAST, "--episodes", "1", "--folder", "videos"]) == 0
    assert modes == ["rgb_array"]
    assert len(list(Path("videos").glob("*.mp4"))) == 1

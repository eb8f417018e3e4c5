"""Check the commands `plot` and `curves`."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from td3_lightning.cli.app import main
from td3_lightning.replay.episodes import RecordedEpisode
from td3_lightning.reporting import policy_plots, seed_curves


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a short run in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return train()


def train(*words: str) -> Path:
    """Train for 18 environment steps in the working directory, and return the folder of the run."""
    small = ["--data.steps_per_epoch=4", "--data.batch_size=4", "--data.eval_episodes=1", "--model.hidden_dims=[8]"]
    small += ["--collector.warmup_steps=10", "--trainer.max_epochs=2", "--trainer.enable_progress_bar=false"]
    assert main(["fit", "--data.env_id=Pendulum-v1", *small, *words]) == 0
    return Path("lightning_logs/default/version_0")


def test_plot_prints_the_paths_of_its_pictures(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = str(run_folder / "checkpoints" / "last.ckpt")
    capsys.readouterr()
    assert main(["plot", "--ckpt_path", checkpoint, "--episodes=1", "--folder", "pictures"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["pictures/values.png", "pictures/actions.png"]
    assert Path("pictures/values.png").read_bytes().startswith(b"\x89PNG")


def test_plot_uses_the_discount_at_the_end_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    used: list[float] = []

    def record(episode: RecordedEpisode, gamma: float, last: float) -> NDArray[np.float64]:
        used.append(gamma)
        return np.zeros(len(episode.reward))

    monkeypatch.setattr(policy_plots, "discounted_returns", record)
    gamma = "{class_path: td3_lightning.Linear, init_args: {start: 0.5, end: 0.95, steps: 20}}"
    checkpoint = train(f"--data.gamma={gamma}") / "checkpoints" / "last.ckpt"
    assert main(["plot", "--ckpt_path", str(checkpoint), "--episodes=1"]) == 0
    assert used == [pytest.approx(0.5 + 0.45 * 18 / 20)]


def test_curves_draws_runs_and_prints_the_path(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    words = [str(run_folder), "--reference", str(run_folder / "metrics.csv"), "--output", "new/both.png"]
    assert main(["curves", *words]) == 0
    assert capsys.readouterr().out == "new/both.png\n"
    assert Path("new/both.png").read_bytes().startswith(b"\x89PNG")


def test_curves_draws_named_groups(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, int] = {}

    def draw(groups: dict[str, list[Path]], *_: object) -> None:
        drawn.update({name: len(paths) for name, paths in groups.items()})

    monkeypatch.setattr(seed_curves, "write_seed_curves", draw)
    run = str(run_folder)
    assert main(["curves", "--group", "TD3", run, run, "--group", "TD7", run]) == 0
    assert drawn == {"TD3": 2, "TD7": 1}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x", "--group", "runs", "y"], "group must be a new name, followed by at least one run, got 'runs y'."),
        ([], "curves requires the folder of at least one run, got none. Use "),
        (["absent"], "A run must be a folder with metrics.csv, or such a file, got "),
        (["x", "--metrics", "y"], "curves has no setting --metrics. Use curves --help"),
    ],
)
def test_invalid_use_is_one_sentence(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["curves", *words]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())

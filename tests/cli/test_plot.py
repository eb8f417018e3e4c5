"""Check the commands `plot` and `curves`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from td3_lightning.cli.app import main
from td3_lightning.replay.episodes import RecordedEpisode
from td3_lightning.reporting import policy_plots, seed_curves
from tests.cli.test_app import FIT, SMALL, folder, last, run, trained  # noqa: F401  # the fixtures


def test_plot_prints_the_paths_of_its_pictures(last: Path, capsys: Any) -> None:  # noqa: F811
    assert main(["plot", "--ckpt_path", str(last), "--episodes=1", "--folder", "pictures"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["pictures/values.png", "pictures/actions.png"]
    assert Path("pictures/values.png").read_bytes().startswith(b"\x89PNG")


def test_plot_uses_the_discount_at_the_end_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[float] = []

    def record(episode: RecordedEpisode, gamma: float, _: float) -> NDArray[np.float64]:
        used.append(gamma)
        return np.zeros(len(episode.reward))

    monkeypatch.setattr(policy_plots, "discounted_returns", record)
    gamma = "{class_path: td3_lightning.Linear, init_args: {start: 0.5, end: 0.95, steps: 20}}"
    run(*FIT, *SMALL, f"--data.gamma={gamma}")
    checkpoint = "lightning_logs/here/version_0/checkpoints/last.ckpt"
    assert main(["plot", "--ckpt_path", checkpoint, "--episodes=1"]) == 0
    assert used == [pytest.approx(0.5 + 0.45 * 14 / 20)]


def test_curves_draws_runs_and_prints_the_path(trained: Path, capsys: Any) -> None:  # noqa: F811
    words = [str(trained), "--group", "reference", str(trained / "metrics.csv"), "--output", "new/both.png"]
    assert main(["curves", *words]) == 0
    assert capsys.readouterr().out == "new/both.png\n"
    assert Path("new/both.png").read_bytes().startswith(b"\x89PNG")


def test_curves_draws_named_groups(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    drawn: dict[str, int] = {}

    def draw(groups: dict[str, list[Path]], *_: object) -> None:
        drawn.update({name: len(paths) for name, paths in groups.items()})

    monkeypatch.setattr(seed_curves, "write_seed_curves", draw)
    one = str(trained)
    assert main(["curves", "--group", "TD3", one, one, "--group", "TD7", one]) == 0
    assert drawn == {"TD3": 2, "TD7": 1}

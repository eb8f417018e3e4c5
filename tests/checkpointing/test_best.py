"""Best checkpoints: their names, their order, and what they hold."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.cli.test_app import FIT, SMALL, folder, run  # noqa: F401  # the fixture


class Symbols(gym.Env):
    """Report numbers whose names contain other signs than letters, after three steps."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        info = {"laps": 2, "cost (USD)": 3.0, "reward:ctrl": 0.5}
        return np.zeros(2, np.float32), 1.0, False, self.steps == 3, info


gym.register("Symbols-v0", Symbols)


@pytest.mark.parametrize(
    ("monitor", "name"),
    [
        ("eval/return_mean", "steps_14_return_3.00"),
        ("eval/laps", "steps_14_laps_2.00"),
        ("eval/cost (USD)", "steps_14_cost_USD_3.00"),
        ("eval/reward:ctrl", "steps_14_reward_ctrl_0.50"),
        ("updates", "steps_14_updates_4.00"),
    ],
)
def test_name_has_the_clock_and_the_metric_and_the_run_resumes(monitor: str, name: str, folder: Any) -> None:  # noqa: F811
    fit = [*FIT, *SMALL, "--data.env_id=Symbols-v0"]
    run(*fit, f"--checkpoint.monitor={monitor}")
    assert {path.name for path in Path("lightning_logs").rglob("*.ckpt")} == {f"{name}.ckpt", "last.ckpt"}
    if monitor == "eval/cost (USD)":
        run(*fit, "--trainer.max_epochs=2", "--ckpt_path=last")
        assert Path("lightning_logs/here/version_0/checkpoints/last-1.ckpt").exists()


def test_only_a_plain_model_checkpoint_saves_the_replay(folder: Any) -> None:  # noqa: F811
    plain = "{class_path: ModelCheckpoint, init_args: {filename: plain}}"
    best = "{class_path: td3_lightning.checkpointing.best.BestCheckpoint, init_args: {monitor: episodes}}"
    run(*FIT, *SMALL, f"--trainer.callbacks=[{plain}, {best}]")
    checkpoints = Path("lightning_logs", "here", "version_0", "checkpoints")
    ranks = {
        path.stem: torch.load(path, weights_only=True)["ReplayData"]["ranks"] for path in checkpoints.glob("*.ckpt")
    }
    assert {"plain", "steps_14_episodes_0.00", "last"} < set(ranks)
    replays = {name: rank[0]["replay"] for name, rank in ranks.items() if "replay" in rank[0]}
    assert set(replays) == {"plain", "last"}
    stored = {name: sum(len(rows) for _, rows in replay["rings"][0]["rows"]) for name, replay in replays.items()}
    assert stored["plain"] >= 14
    assert stored["last"] <= 2  # the others are in the segments
    run(*FIT, *SMALL, "--trainer.max_epochs=2", f"--ckpt_path={checkpoints / 'plain.ckpt'}")

"""Train the documented tasks of dm_control and Gymnasium-Robotics. `make test-robotics` runs these tests."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from run_comparison import differences, whole
from td3_lightning.cli.app import main
from td3_lightning.replay.ring import RUNNING, TRUNCATED

for package in ("dm_control", "gymnasium_robotics", "shimmy"):
    pytest.importorskip(package, reason="the extra robotics is not installed; run make test-robotics")

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "observations.md"
SMALL = [
    *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--model.hidden_dims=[8,8]"),
    *("--data.steps_per_epoch=7", "--data.batch_size=4", "--data.eval_episodes=1"),
]
WARMUP = {"cheetah_run": 1010, "fetch_reach": 60}  # one episode and a part of the second


def fit(task: str, name: str, *words: str) -> Path:
    """Train the task of the guide, or `fetch_reach.yaml`, and return the last checkpoint."""
    (config,) = re.findall(r"^```yaml\n(data:\n  env_id: shimmy.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    Path("cheetah_run.yaml").write_text(config)
    line = ["fit", "--config", f"{task}.yaml", "--name", name, *SMALL, f"--collector.warmup_steps={WARMUP[task]}"]
    assert main([*line, *words]) == 0
    return Path("lightning_logs", name, "version_0", "checkpoints", "last.ckpt")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train both tasks for two epochs without an interruption."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("runs"))
        return {task: fit(task, task, "--trainer.max_epochs=2").absolute() for task in WARMUP}


def rows_of(checkpoint: Path) -> NDArray[np.float32]:
    """Return the rows of the replay buffer: observation, action, reward and how the step ended."""
    (ring,) = whole(checkpoint)["ReplayData"]["ranks"][0]["replay"]["rings"]
    rows: NDArray[np.float32] = ring["rows"].numpy()
    return rows


def test_cheetah_is_stored_as_position_then_velocity(checkpoints: dict[str, Path]) -> None:
    rows = rows_of(checkpoints["cheetah_run"])[:1000]
    assert rows.shape[1] == 8 + 9 + 6 + 2
    position, velocity = rows[:, :8], rows[:, 9:17]  # the position of the root is not observed, and its velocity is
    np.testing.assert_allclose(np.diff(position, axis=0), 0.01 * velocity[1:], atol=1e-5)  # Euler steps of 10 ms


def test_goal_is_stored_before_the_observation(checkpoints: dict[str, Path]) -> None:
    rows = rows_of(checkpoints["fetch_reach"])
    assert rows.shape[1] == 3 + 3 + 10 + 4 + 2
    achieved, desired, observation = rows[:, :3], rows[:, 3:6], rows[:, 6:16]
    np.testing.assert_array_equal(achieved, observation[:, :3])  # the position of the gripper
    np.testing.assert_array_equal(desired[:51], np.tile(desired[0], (51, 1)))
    assert not np.array_equal(desired[50], desired[51])
    distance = np.linalg.norm(achieved[1:51] - desired[:50], axis=1)
    np.testing.assert_array_equal(rows[:50, -2], -(distance > 0.05).astype(np.float32))


@pytest.mark.parametrize(("task", "limit"), [("cheetah_run", 1000), ("fetch_reach", 50)])
def test_time_limit_is_stored_as_truncation(task: str, limit: int, checkpoints: dict[str, Path]) -> None:
    ends = rows_of(checkpoints[task])[: limit + 10, -1]
    assert ends[limit - 1] == TRUNCATED
    assert set(np.delete(ends, limit - 1)) == {RUNNING}


@pytest.mark.parametrize("task", WARMUP)
def test_resume_is_bit_exact(task: str, checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    last = fit(task, "resumed", "--trainer.max_epochs=1")
    assert "/clocks/updates" in differences(last, checkpoints[task])
    fit(task, "resumed", "--trainer.max_epochs=2", "--ckpt_path", str(last))
    other = differences(last, checkpoints[task])
    assert [name for name in other if "/BestCheckpoint" not in name] == []  # it has the paths of the run

"""The command `collect`, and training from the dataset that it writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import recorded
import toys  # noqa: F401  # registers them
from td3_lightning import Policy
from td3_lightning.cli.app import main
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from tests.envs.test_flatten import Goal

h5py = pytest.importorskip("h5py")
pytest.importorskip("minari")

SMALL = [
    *("--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
    *("--data.steps_per_epoch=4", "--data.batch_size=4", "--data.eval_episodes=1", "--model.hidden_dims=[8,8]"),
    *("--collector.warmup_steps=10", "--data.env_kwargs={max_episode_steps: 9}"),
]
OFFLINE = ["--data.dataset.offline=true", "--model.bc_weight=0.4"]
Error = Callable[..., str]

gym.register("CollectedGoal-v0", Goal)


@pytest.fixture
def last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the last checkpoint of a short run in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("here.yaml").write_text("data: {env_id: Pendulum-v1}\n")
    assert main(["fit", "--config", "here.yaml", *SMALL]) == 0
    return Path("lightning_logs/here/version_0/checkpoints/last.ckpt")


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]) -> Error:
    """Return a function that runs an invalid command and returns its only line."""

    def run(*words: object) -> str:
        capsys.readouterr()
        assert main([*map(str, words)]) == 2
        output = capsys.readouterr().err
        assert output.count("\n") == 1, output
        return output

    return run


def arrays(name: str) -> dict[str, object]:
    with h5py.File(Path("datasets", name, "data", "main_data.hdf5")) as file:
        found: dict[str, object] = {}
        file.visititems(lambda key, item: found.update({key: item[()].tolist()} if hasattr(item, "shape") else {}))
    return found


def test_collect_fit_and_test(last: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collect = ["collect", "--ckpt_path", str(last), "--episodes", "2", "--noise", "0.1"]
    for name in ("mine/some", "mine/other-v3"):
        assert main([*collect, "--dataset", name]) == 0
    output = capsys.readouterr().out
    assert "mine/some-v0: 2 episodes, 18 steps, return -" in output
    assert arrays("mine/some-v0") == arrays("mine/other-v3")
    assert main([*collect, "--dataset", "mine/seed", "--seed_everything", "7"]) == 0
    assert arrays("mine/some-v0") != arrays("mine/seed-v0")
    fit = ["fit", "--config", "here.yaml", *SMALL, "--data.dataset.name", "mine/some-v0", *OFFLINE, "--name", "offline"]
    assert main(fit) == 0
    output = capsys.readouterr().out
    assert "dataset      mine/some-v0: 2 episodes, 18 steps" in output
    assert "best         eval/return_mean -" in output
    own = "lightning_logs/offline/version_0/checkpoints/last.ckpt"
    assert main(["test", "--ckpt_path", own, "--data.test_episodes=1"]) == 0  # the id needs no --config
    assert "after 4 updates of training" in capsys.readouterr().out
    assert main([*fit, "--ckpt_path", own, "--trainer.max_epochs=2"]) == 0
    assert read_checkpoint(Path(own))["clocks"] == {"env_steps": 0, "updates": 8, "episodes": 0}


def test_goals_keep_their_structure_in_datasets_and_policies(error: Error, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    small = [word for word in SMALL if "env_kwargs" not in word]
    fit = ["fit", "--data.env_id", "CollectedGoal-v0", *small]
    assert main([*fit, "--name", "first"]) == 0
    last = "lightning_logs/{}/version_0/checkpoints/last.ckpt".format
    assert main(["collect", "--ckpt_path", last("first"), "--dataset", "goals", "--episodes", "2"]) == 0
    names = "achieved_goal", "desired_goal", "observation"
    assert {f"episode_1/observations/{name}" for name in names} < arrays("goals-v0").keys()
    offline = [*fit, "--data.dataset.name", "goals-v0", *OFFLINE]
    assert main([*offline, "--name", "second"]) == 0
    policy = Policy.load(last("second"))
    obs = {name: np.array([number, 1.0]) for number, name in enumerate(names)}
    np.testing.assert_array_equal(policy(obs), policy([0, 1, 1, 1, 2, 1]))
    with h5py.File(Path("datasets/goals-v0/data/main_data.hdf5"), "a") as file:
        file["episode_1/observations/desired_goal"][2, 0] = np.inf
    expected = "finite float32 numbers, got inf in the observations/desired_goal of episode 1. Remove the episode. The "
    assert expected in error(*offline, "--name", "third")
    assert not Path("lightning_logs/third").exists()


def test_invalid_collect_writes_nothing(last: Path, error: Error) -> None:
    recorded.write(Path("datasets"))
    missing = error("collect", "--ckpt_path", last)
    assert missing.strip() == "dataset is required. Set it in a configuration (--config car.yaml) or with --dataset."
    collect = ["collect", "--ckpt_path", last, "--dataset"]
    for words, expected in (
        (["recorded-v0"], "dataset must be a new name, got recorded-v0"),
        (["a b"], "dataset must be a name such as lander/expert-v0, got 'a b'"),
        (["new", "--episodes", "0"], "episodes must be in [1, 1000000], got 0"),
    ):
        assert expected in error(*collect, *words)
    assert [path.name for path in Path("datasets").iterdir()] == ["recorded-v0"]


def test_failed_write_leaves_no_dataset(
    last: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("minari.dataset._storages.hdf5_storage.HDF5Storage.update_episodes", full)
    assert main(["collect", "--ckpt_path", str(last), "--dataset", "new", "--episodes", "1"]) == 1
    assert "The dataset cannot be written to" in capsys.readouterr().err
    assert not Path("datasets", "new-v0").exists()


def test_invalid_dataset_starts_no_run(last: Path, error: Error) -> None:
    data = recorded.write(Path("datasets").absolute())
    fit = ["fit", "--config", "here.yaml", "--name", "new", *SMALL]
    gone, other = "--data.dataset.name=gone-v0", "--data.env_id=MountainCarContinuous-v0"
    assert "must be the id or the folder of a Minari dataset, got 'gone-v0'" in error(*fit, gone)
    assert "observations of data.dataset must be" in error(*fit, "--data.dataset.name=recorded-v0", other)
    with h5py.File(data / "main_data.hdf5", "a") as file:
        file["episode_0/rewards"][0] = np.nan
    assert "finite float32 numbers, got nan in the rewards of episode 0" in error(*fit, "--data.dataset.name", data)
    assert not Path("lightning_logs/new").exists()

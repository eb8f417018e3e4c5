"""The command `export`: policies and weights of a run, and one sentence for each mistake."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from td3_lightning import TD7, Policy, __version__
from td3_lightning.cli.app import main
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from tests.cli.test_app import trained  # noqa: F401  # the fixture

LAST = Path("lightning_logs/run/version_0/checkpoints/last.ckpt").absolute
CONFIG: dict[str, Any] = {
    "model": {"class_path": "TD7", "hidden_dims": [8, 8], "zs_dim": 6, "target_update_freq": 5},
    "data": {"env_id": "Pendulum-v1", "env_kwargs": {"max_episode_steps": 10}, "batch_size": 4, "steps_per_epoch": 60},
    "collector": {"warmup_steps": 10},
    "trainer": {
        "accelerator": "cpu",
        "max_epochs": 1,
        "enable_progress_bar": False,
        "callbacks": [{"class_path": "td3_lightning.PolicyCheckpoint"}],
    },
}


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the last checkpoint of a TD7, whose deployed policy differs from the trained one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trained"))
        Path("run.yaml").write_text(yaml.safe_dump(CONFIG))
        assert main(["fit", "--config", "run.yaml", "--data.eval_episodes", "1"]) == 0
        return LAST()


@pytest.fixture
def last_td3(trained: Path) -> Path:  # noqa: F811
    """Return the last checkpoint of a TD3."""
    return trained / "checkpoints" / "last.ckpt"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error_of(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the sentence of a command that fails and writes no file."""
    before = set(Path().rglob("*"))
    capsys.readouterr()
    assert main(["export", *map(str, words)]) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert set(Path().rglob("*")) == before
    return error


@pytest.mark.parametrize("form", ["onnx", "pt2"])
def test_export_writes_the_policy_that_test_evaluates(
    form: str, last: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ckpt_path", str(last), "--format", form, "--output", f"new/policy.{form}"]
    assert main(["export", *words]) == 0
    assert capsys.readouterr().out.startswith(
        f"new/policy.{form}: the actions equal the agent's on 10,000 observations"
    )
    assert [str(path) for path in sorted(Path().rglob("*"))] == ["new", f"new/policy.{form}"]
    agent, checkpoint = TD7.load_from_checkpoint(last), read_checkpoint(last)
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    if form == "onnx":
        policy = Policy.load("new/policy.onnx")
        actions, metadata = policy(obs), policy.metadata
    else:
        extra = {"metadata.json": ""}
        actions = torch.export.load("new/policy.pt2", extra_files=extra).module()(torch.from_numpy(obs)).numpy()
        metadata = json.loads(extra["metadata.json"])
    np.testing.assert_allclose(actions, agent.act(obs), atol=1e-5)
    agent.load_state_dict(checkpoint["state_dict"] | checkpoint["trained_policy"])
    assert np.abs(actions - agent.act(obs)).max() > 1e-3  # not the policy that was trained
    assert (metadata["env_id"], metadata["algorithm"], metadata["version"]) == ("Pendulum-v1", "TD7", __version__)
    assert metadata["observation_space"]["high"] == [1.0, 1.0, 8.0]
    assert metadata["action_space"] == {"type": "Box", "shape": [1], "low": [-2.0], "high": [2.0]}
    assert {name: metadata[name] for name in ("env_steps", "updates")} == {"env_steps": 70, "updates": 60}
    assert metadata["evaluation"]["eval/return_mean"] < 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--format", "onnx", "--output", "a.pt2"], "output must end in .onnx, got "),
        ([], "export --format weights requires --files alone"),
        (["--format", "pt2", "--output", "mine/a.pt2"], "a.pt2, which exists. Use another --output."),
    ],
)
def test_mistake_is_one_sentence(
    words: list[str], expected: str, last: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine").mkdir()
    Path("mine/a.pt2").write_text("mine")
    assert expected in error_of(capsys, "--ckpt_path", last, *words)
    assert Path("mine/a.pt2").read_text() == "mine"


@pytest.mark.parametrize("words", [["onnx", "--output", "a.onnx"], ["weights", "--files", "a"]])
def test_untrained_checkpoint_is_refused(words: list[str], last_td3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = read_checkpoint(last_td3)
    checkpoint["clocks"].update(updates=0)
    torch.save(checkpoint, "changed.ckpt")
    expected = "export requires a trained agent, got one with 0"
    assert expected in error_of(capsys, "--ckpt_path", "changed.ckpt", "--format", *words)


def test_imported_weights_without_adam_are_exported(last_td3: Path) -> None:
    assert main(["export", "--ckpt_path", str(last_td3), "--format", "weights", "--files", "theirs"]) == 0
    for file in Path().glob("theirs_*_optimizer"):
        file.unlink()
    config = str(last_td3.parents[1] / "config.yaml")
    assert main(["import", "--config", config, "--files", "theirs"]) == 0
    assert main(["export", "--ckpt_path", "theirs.ckpt", "--format", "weights", "--files", "a"]) == 0

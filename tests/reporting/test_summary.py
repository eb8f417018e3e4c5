"""Test the summary at the end of `fit` and the commands that it prints."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from td3_lightning.cli.app import main
from td3_lightning.reporting.summary import command
from td3_lightning.serialization.checkpoint_file import read_checkpoint

FIT = [
    *("fit", "--config", "here.yaml", "--data.steps_per_epoch=4", "--data.batch_size=4", "--data.capacity=1000"),
    *("--collector.warmup_steps=10", "--model.hidden_dims=[8]", "--trainer.accelerator=cpu"),
    *("--trainer.enable_progress_bar=false", "--data.test_episodes=1", "--data.env_kwargs={max_episode_steps: 20}"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("here.yaml").write_text("data: {env_id: Pendulum-v1}\n")
    return tmp_path


def test_best_of_a_run_with_another_mode_is_its_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    """Resume two equal runs with the opposite order. Only one of them can have its overall best value after that."""
    for first, then in (("max", "min"), ("min", "max")):
        words = [*FIT, f"--name={first}", "--data.eval_episodes=1"]
        assert main([*words, f"--checkpoint.mode={first}", "--trainer.max_epochs=3"]) == 0
        capsys.readouterr()
        for epochs, mode in (("4", [f"--checkpoint.mode={then}"]), ("5", [])):
            assert main([*words, "--ckpt_path=last", f"--trainer.max_epochs={epochs}", *mode]) == 0
            out = capsys.readouterr().out
            (best,) = re.findall(r"best +eval/return_mean (\S+)", out)
            ((steps, value),) = re.findall(r"checkpoint +\S+/steps_(\d+)_return_(\S+)\.ckpt", out)
            assert best.replace(",", "") == value
            assert int(steps) > 10 + 3 * 4


@pytest.mark.parametrize("is_active", [True, False])
def test_commands_run_without_an_active_environment(
    is_active: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_folder, other = tmp_path / ".venv" / "bin", tmp_path / "bin"
    for path in (bin_folder / "td3-lightning", other / "td3-lightning"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    monkeypatch.setenv("PATH", str(bin_folder if is_active else other))
    monkeypatch.setattr(sys, "executable", str(bin_folder / "python3"))
    begin = "td3-lightning" if is_active else f"{bin_folder}/python3 -m td3_lightning"
    assert command("test", "--ckpt_path", "a b.ckpt") == f"{begin} test --ckpt_path 'a b.ckpt'"


def test_printed_commands_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, "--name=a b", "--trainer.max_epochs=2", "--data.eval_episodes=1"]) == 0
    out = capsys.readouterr().out
    assert "\ncurve        lightning_logs/a b/version_0/curve.png\ntime         0:0" in out
    assert "best         eval/return_mean -" in out
    assert "±" not in out
    commands = {words[3]: words[3:] for words in map(shlex.split, out.splitlines()) if words[1:2] == ["-m"]}
    assert commands.keys() == {"test", "record", "fit"}
    assert commands["fit"][-1] == "4"  # twice as many epochs
    for words in commands.values():
        assert main([*words, *(["--episodes=1"] if words[0] == "record" else [])]) == 0
    assert "To resume:" in capsys.readouterr().out


def test_printed_commands_of_a_run_with_code_name_its_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, "--data.env_id=toys:toys/Counter-v0", "--trainer.max_epochs=1", "--data.eval_episodes=1"]) == 0
    (words,) = (words[3:] for line in capsys.readouterr().out.splitlines() if "test" in (words := shlex.split(line)))
    assert words[:2] == ["test", "--config"]
    assert main(words) == 0
    assert main([words[0], *words[3:]]) == 2


def test_ctrl_c_prints_a_command_that_resumes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stops = "{class_path: run_comparison.Stops, init_args: {moment: on_train_batch_start, updates: 6, number: 2}}"
    with pytest.raises(SystemExit) as ended:
        main([*FIT, f"--trainer.callbacks+={stops}", "--trainer.max_epochs=-1"])
    assert ended.value.code == 130
    *_, purpose, resume = capsys.readouterr().out.splitlines()
    assert purpose == "To resume:"
    (last,) = folder.rglob("last.ckpt")
    assert read_checkpoint(last)["clocks"]["updates"] == 7
    assert main([*shlex.split(resume)[3:], "--trainer.max_epochs=3"]) == 0
    assert read_checkpoint(last)["clocks"]["updates"] == 12

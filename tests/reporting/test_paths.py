"""Test that paths are expanded and made absolute at the start, and that URLs are refused."""

import os
from pathlib import Path

import pytest
import yaml

from td3_lightning import ReplayData, UsageError
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.paths import absolute, expand, shown
from td3_lightning.reporting.video import record_each
from tests.cli.test_app import FIT, SMALL, error_of, folder, run  # noqa: F401  # the fixtures
from tests.reporting.test_video import policy_for

DATA = "data: {{env_id: toys/{}-v0, env_kwargs: {{low: [-1.0], high: [1.0]}}}}\n"


def files(where):
    return {path.relative_to(where).as_posix() for path in where.rglob("*") if path.is_file()}


def test_home_directory_is_expanded_in_every_path(folder, tmp_path_factory, monkeypatch):  # noqa: F811
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    folder.joinpath("here.yaml").write_text(f"{DATA.format('Painter')}trainer: {{default_root_dir: ~/r}}\n")
    before = files(folder)
    run(*FIT, *SMALL)
    run(*FIT, *SMALL, "--trainer.max_epochs=2", "--ckpt_path=last")
    version = home / "r" / "lightning_logs" / "here" / "version_0"
    assert {"config.yaml", "metrics.csv", "curve.png", "checkpoints/last.ckpt"} <= files(version)
    assert [path.name for path in version.parent.iterdir()] == ["version_0"]
    assert yaml.safe_load(version.joinpath("config.yaml").read_text())["trainer"]["default_root_dir"] == "~/r"
    checkpoint = "--ckpt_path=~/r/lightning_logs/here/version_0/checkpoints/last.ckpt"
    run(*FIT, *SMALL, "--trainer.max_epochs=3", checkpoint)
    assert [path.name for path in version.parent.iterdir()] == ["version_0"]
    run("record", checkpoint, "--folder=~/films", "--episodes=1")
    assert len(files(home / "films")) == 1
    run("export", checkpoint, "--files=~/weights/toy")
    assert {"toy_actor", "toy_critic"} <= files(home / "weights")
    run("import", *FIT[1:], *SMALL[-1:], "--files=~/weights/toy", "--output=~/toy.ckpt")
    assert home.joinpath("toy.ckpt").is_file()
    run(*FIT, *SMALL, "--checkpoint.dirpath=~/kept")
    assert home.joinpath("kept", "last.ckpt").is_file()
    assert files(folder) == before


@pytest.mark.parametrize("setting", ["name", "version"])
@pytest.mark.parametrize("value", ["a/../../x", "/x"])
def test_run_logger_stays_in_its_folder(setting, value, tmp_path):
    with pytest.raises(UsageError, match=f"{setting} must be a folder below save_dir, got .*Use save_dir"):
        RunLogger(str(tmp_path / "logs"), **{setting: value})
    assert not tmp_path.joinpath("logs").exists()


def test_folder_of_a_recording_is_that_of_the_call(folder, tmp_path_factory):  # noqa: F811
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    wrappers = [lambda env: os.chdir(elsewhere) or env]
    data = ReplayData("toys/Painter-v0", {"length": 3}, wrappers=wrappers, capacity=10)
    os.chdir(folder)
    (video,) = record_each(policy_for(data), data, 1, "films")
    assert Path.cwd() == elsewhere
    assert video.path.parent == folder / "films"
    assert os.listdir(elsewhere) == []


def test_logger_keeps_its_folder_when_the_directory_changes(folder, tmp_path_factory):  # noqa: F811
    logger = RunLogger("logs", "a")
    os.chdir(elsewhere := tmp_path_factory.mktemp("elsewhere"))
    logger.log_metrics({"x": 1.0}, 1)
    logger.finalize("success")
    assert "logs/a/version_0/metrics.csv" in files(folder)
    assert os.listdir(elsewhere) == []


def test_dollar_in_a_folder_is_itself(folder, monkeypatch):  # noqa: F811
    monkeypatch.setenv("NAME", "other")
    run(*FIT, *SMALL, "--name=a$NAME")
    assert {"metrics.csv", "checkpoints/last.ckpt"} <= files(folder / "lightning_logs" / "a$NAME" / "version_0")


def test_expansion(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert expand("x", "~/a") == "/home/me/a"
    assert expand("x", "a/~") == "a/~"
    assert absolute("x", "a/b") == Path.cwd() / "a" / "b"
    with pytest.raises(UsageError, match=r"^x must be a local path, got 'file:///a'\. Use a folder or a file on this"):
        expand("x", "file:///a")
    assert (shown("/a/b/c", Path("/a")), shown("/b/c", Path("/a"))) == ("b/c", "/b/c")

"""Test which folder a new or resumed run uses, what the folder contains, and which runs are refused."""

import csv
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch
import yaml
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from processes import wait_for
from td3_lightning import TD3, Collector
from td3_lightning.cli.app import main
from td3_lightning.errors import UsageError
from td3_lightning.reporting.run_dir import RunLock, newest_last
from td3_lightning.serialization import checkpoint_file
from tests.cli.test_app import FIT, PENDULUM, SMALL, run

RUNS = Path("lightning_logs", "here")
LAST = RUNS / "version_0" / "checkpoints" / "last.ckpt"


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Create a folder with a run of one epoch and four updates."""
    folder = tmp_path_factory.mktemp("once")
    before = Path.cwd()
    os.chdir(folder)
    folder.joinpath("here.yaml").write_text(PENDULUM)
    try:
        run("fit", "--config", "here.yaml", *SMALL)
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(autouse=True)
def folder(once, tmp_path, monkeypatch):
    """Work in a copy of that folder."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fit(*words, epochs=2):
    run("fit", "--config", "here.yaml", *SMALL, f"--trainer.max_epochs={epochs}", *words)


def refusal(capsys, *words):
    """Return the error of a refused run."""
    capsys.readouterr()
    assert main(["fit", "--config", "here.yaml", *SMALL, *map(str, words)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def steps(version="version_0"):
    """Return env_steps of the evaluations in metrics.csv."""
    with RUNS.joinpath(version, "metrics.csv").open(newline="") as file:
        return [int(row["env_steps"]) for row in csv.DictReader(file) if row["eval/return_mean"]]


def events(version="version_0"):
    shown = EventAccumulator(str(RUNS / version)).Reload()
    return [event.step for event in shown.Scalars("eval/return_mean")]


def versions():
    return sorted(path.name for path in RUNS.iterdir())


def test_resume_continues_in_the_run_folder():
    before = torch.load(LAST, weights_only=True)
    fit("--ckpt_path", LAST, epochs=3)
    assert versions() == ["version_0"]
    assert steps() == events() == [14, 18, 22]
    (best,) = LAST.parent.glob("steps_*.ckpt")
    (key,) = (key for key in before["callbacks"] if key.startswith("BestCheckpoint"))
    assert list(torch.load(LAST, weights_only=True)["callbacks"][key]["best_k_models"]) == [str(best.absolute())]
    config = yaml.safe_load(RUNS.joinpath("version_0", "config.yaml").read_text())
    assert config["ckpt_path"] is None
    assert config["trainer"]["max_epochs"] == 3


def test_resume_keeps_the_seed_unless_it_is_given():
    def seeds():
        config = yaml.safe_load(RUNS.joinpath("version_1", "config.yaml").read_text())
        return config["seed_everything"], torch.load(last, weights_only=True)["config"]["seed_everything"]

    last = RUNS / "version_1" / "checkpoints" / "last.ckpt"
    fit("--seed_everything", "5", epochs=1)
    for epochs, words, seed in ((2, [], 5), (3, ["--seed_everything", "6"], 6), (4, [], 6)):
        fit("--ckpt_path", last, *words, epochs=epochs)
        assert seeds() == (seed, seed)


def test_resume_keeps_precision_and_intervals(capsys):
    last = RUNS / "version_1" / "checkpoints" / "last.ckpt"
    fit("--trainer.precision=bf16-mixed", "--trainer.check_val_every_n_epoch=2", "--checkpoint.mode=min", epochs=2)
    Path("here.yaml").write_text(f"{PENDULUM}trainer: {{log_every_n_steps: 7}}\n")
    fit("--ckpt_path", last, epochs=6)
    config = yaml.safe_load(RUNS.joinpath("version_1", "config.yaml").read_text())
    assert (config["trainer"]["precision"], config["checkpoint"]["mode"]) == ("bf16-mixed", "min")
    assert steps("version_1") == [18, 26, 34]
    assert "trainer.log_every_n_steps None (not 7)" in capsys.readouterr().out
    fit("--ckpt_path", last, "--trainer.precision=32", epochs=8)
    config = yaml.safe_load(RUNS.joinpath("version_1", "config.yaml").read_text())
    assert (config["trainer"]["precision"], config["checkpoint"]["mode"]) == (32, "min")
    run("test", "--ckpt_path", last)


def test_other_model_checkpoint_does_not_write_last(capsys):
    fit("--trainer.callbacks=ModelCheckpoint", epochs=2)
    (said,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("checkpoint"))
    assert "/steps_" in said
    both = ["--trainer.callbacks=ModelCheckpoint", "--trainer.callbacks.save_last=true"]
    assert "save_last must be false for a ModelCheckpoint" in refusal(capsys, *both)
    fit(*both, "--trainer.callbacks.dirpath=elsewhere")
    assert Path("elsewhere/last.ckpt").exists()


def test_rows_after_the_checkpoint_are_deleted(folder):
    """Simulate a kill between the end of the second epoch and its save: last.ckpt is from the first epoch."""
    shutil.copytree(LAST.parent, folder / "first")
    fit("--ckpt_path", LAST)
    assert steps() == [14, 18]
    shutil.rmtree(LAST.parent)
    shutil.copytree(folder / "first", LAST.parent)
    fit("--ckpt_path", LAST, epochs=3)
    assert steps() == events() == [14, 18, 22]


def test_resume_waits_for_a_process_that_is_ending(folder, monkeypatch):
    shutil.copytree(LAST.parent, folder / "first")
    fit("--ckpt_path", LAST)
    shutil.move(LAST.parent, folder / "second")
    shutil.copytree(folder / "first", LAST.parent)
    ending = RunLock(RUNS / "version_0")

    def end():
        shutil.rmtree(LAST.parent)
        shutil.move(folder / "second", LAST.parent)
        ending.release()

    updates, update = [], TD3.training_step
    monkeypatch.setattr(TD3, "training_step", lambda *step: updates.append(step) or update(*step))
    threading.Timer(1.0, end).start()
    fit("--ckpt_path", LAST, epochs=3)
    assert steps() == [14, 18, 22]
    assert len(updates) == 4


def test_new_name_copy_and_empty_replay_start_new_runs(folder):
    fit("--ckpt_path", LAST, "--name", "there")
    assert Path("lightning_logs/there/version_0/metrics.csv").is_file()
    shutil.copytree(LAST.parent, folder / "copy")
    fit("--ckpt_path", folder / "copy" / "last.ckpt")
    assert versions() == ["version_0", "version_1"]
    fit("--ckpt_path", LAST, "--data.empty_replay", "true")
    assert versions() == ["version_0", "version_1", "version_2"]
    assert steps() == [14]
    config = yaml.safe_load(RUNS.joinpath("version_2", "config.yaml").read_text())
    assert config["data"]["empty_replay"] is False
    assert (
        torch.load(RUNS / "version_2/checkpoints/last.ckpt", weights_only=True)["config"]["data"]["empty_replay"]
        is False
    )


def fails_once(monkeypatch, name, after):
    """Make a method of the environment fail once, after a number of calls."""
    method, calls = getattr(PendulumEnv, name), []

    def failing(*args, **kwargs):
        calls.append(name)
        if len(calls) == after + 1:
            raise ValueError("no")
        return method(*args, **kwargs)

    monkeypatch.setattr(PendulumEnv, name, failing)


def test_resume_after_a_failed_warmup(monkeypatch):
    fails_once(monkeypatch, "step", 5)
    new = ["fit", "--config", "here.yaml", *SMALL, "--name=new"]
    assert main(new) == 1
    run(*new, "--ckpt_path=last")
    assert [path.name for path in Path("lightning_logs/new").iterdir()] == ["version_0"]
    with Path("lightning_logs/new/version_0/metrics.csv").open(newline="") as file:
        assert [row["env_steps"] for row in csv.DictReader(file) if row["eval/return_mean"]] == ["14"]


def test_resume_of_a_stage_that_failed_at_its_start(monkeypatch):
    fails_once(monkeypatch, "reset", 0)
    stage = PENDULUM.replace("}", ", empty_replay: true}") + f"ckpt_path: {LAST}\n"
    Path("stage.yaml").write_text(stage)
    words = ["fit", "--config", "stage.yaml", *SMALL, "--trainer.max_epochs=2"]
    assert main(words) == 1
    run(*words, "--ckpt_path=last")
    assert [path.name for path in Path("lightning_logs/stage").iterdir()] == ["version_0"]
    clocks = torch.load("lightning_logs/stage/version_0/checkpoints/last.ckpt", weights_only=True)["clocks"]
    assert (clocks["env_steps"], clocks["updates"]) == (14 + 10 + 4, 8)


def test_stage_resets_best_return_and_patience():
    """Start from a run with another best return and exhausted patience."""
    settings = "{monitor: eval/return_mean, mode: max, patience: 1, min_delta: 1000}"
    stopping = f"trainer: {{callbacks: [{{class_path: EarlyStopping, init_args: {settings}}}]}}\n"
    Path("first.yaml").write_text(PENDULUM + stopping)
    last = "lightning_logs/first/version_0/checkpoints/last.ckpt"
    empty = PENDULUM.replace("}", ", empty_replay: true}")
    Path("stage.yaml").write_text(f"{empty}ckpt_path: {last}\n{stopping}")
    for name in ("first", "stage"):
        run("fit", "--config", f"{name}.yaml", *SMALL, "--trainer.max_epochs=9")
    assert torch.load(last, weights_only=True)["clocks"]["updates"] == 8
    stage = torch.load(last.replace("first", "stage"), weights_only=True)
    assert stage["clocks"]["updates"] == 8 + 8


def test_last_is_the_most_recent_run_of_the_name():
    fit(epochs=1)
    assert versions() == ["version_0", "version_1"]
    os.utime(LAST, (9e9, 9e9))
    fit("--ckpt_path", "last")
    assert (steps("version_0"), steps("version_1")) == ([14, 18], [14])
    os.utime(RUNS / "version_1/checkpoints/last.ckpt", (9.1e9, 9.1e9))
    fit("--ckpt_path=last")
    assert (steps("version_0"), steps("version_1")) == ([14, 18], [14, 18])
    assert newest_last(Path("lightning_logs"), "here").parts[2] == "version_1"


def test_finished_run_does_not_train_and_says_so(capsys):
    before = {path: path.read_bytes() for path in RUNS.rglob("*") if path.is_file() and path.name != "config.yaml"}
    fit("--ckpt_path", LAST, epochs=1)
    assert "The run was complete after 14 env_steps, so nothing was trained" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before
    assert versions() == ["version_0"]


STOPPING = "trainer: {{callbacks: [{{class_path: {}, init_args: {{{}}}}}]}}\n"
EARLY = "lightning.pytorch.callbacks.EarlyStopping"


@pytest.mark.parametrize(
    ("kind", "first", "then", "updates"),
    [
        (EARLY, "monitor: eval/return_mean, mode: max, stopping_threshold: -1.0e+9", "stopping_threshold: 0.0", 20),
        (EARLY, "monitor: eval/return_mean, mode: min, min_delta: 1.0e+9, patience: 1", "patience: 3", 16),
        # The interrupted epoch is not completed.
        ("td3_lightning.StopWhenSolved", "threshold: -1.0e+9, window: 1", "threshold: 0.0", 17),
    ],
)
def test_resume_with_a_weaker_stopping_criterion(kind, first, then, updates):
    Path("here.yaml").write_text(PENDULUM + STOPPING.format(kind, first))
    short = "--data.env_kwargs={max_episode_steps: 3}"
    fit(short, epochs=5)
    last = RUNS / "version_1/checkpoints/last.ckpt"
    assert torch.load(last, weights_only=True)["clocks"]["updates"] < updates
    settings = dict(setting.split(": ") for setting in f"{first}, {then}".split(", "))
    more = ", ".join(f"{name}: {value}" for name, value in settings.items())
    Path("here.yaml").write_text(PENDULUM + STOPPING.format(kind, more))
    fit("--ckpt_path", last, short, epochs=5)
    assert torch.load(last, weights_only=True)["clocks"]["updates"] == updates


RUN_LOGGER = (
    "--trainer.logger={class_path: td3_lightning.reporting.logger.RunLogger, init_args: {name: here, version: 0}}"
)


@pytest.mark.parametrize("words", [[RUN_LOGGER], ["--checkpoint.dirpath", str(LAST.parent)]])
def test_new_run_in_an_existing_run_folder_is_refused(words, capsys):
    before = {path: path.read_bytes() for path in RUNS.rglob("*") if path.is_file()}
    said = refusal(capsys, *words)
    assert "with an existing run" in said
    assert "--ckpt_path" in said
    assert "another folder" in said
    assert {path: path.read_bytes() for path in RUNS.rglob("*") if path.is_file()} == before


def test_locked_run_folder_is_refused(capsys):
    before = {path: path.read_bytes() for path in RUNS.rglob("*") if path.is_file()}
    hold = RunLock(RUNS / "version_0")
    said = refusal(capsys, "--ckpt_path", LAST)
    assert "version_0, which is in use by another process" in said
    assert "--name" in said
    assert {path: path.read_bytes() for path in RUNS.rglob("*") if path.is_file()} == before
    hold.release()
    fit("--ckpt_path", LAST)
    assert steps() == [14, 18]


def test_checkpoint_is_read_once(monkeypatch):
    read, check = [], checkpoint_file.checked_archive
    monkeypatch.setattr(checkpoint_file, "checked_archive", lambda file: read.append(file.name) or check(file))
    for words in (["test"], [*FIT, *SMALL, "--trainer.max_epochs=2"]):
        read.clear()
        run(*words, "--ckpt_path", LAST)
        assert sum(Path(name).name == LAST.name for name in read) == 1, words


def test_lock_ends_with_the_process():
    last = RUNS / "version_1" / "checkpoints" / "last.ckpt"
    if not (process := os.fork()):
        try:
            fit(epochs=100_000)
        finally:
            os._exit(1)
    try:
        wait_for(last.exists)
        with pytest.raises(UsageError, match="in use"):
            RunLock(last.parents[1], timeout=0.0)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    RunLock(last.parents[1]).release()


def test_missing_permission_is_found_before_warmup(capsys, monkeypatch):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "version" not in str(path) and access(path, mode))
    monkeypatch.setattr(Collector, "on_train_start", None)  # would be called next
    assert "got no write permission for" in refusal(capsys)

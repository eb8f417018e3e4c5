"""Test the command line: accepted words, error messages and the precedence of settings."""

import errno
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import Callback

import recorded
from nodes import LIMIT
from processes import wait_for
from td3_lightning import TD3, Replay, ReplayData
from td3_lightning.__main__ import script
from td3_lightning.algorithm.distributed import is_lost_peer
from td3_lightning.cli import app as cli
from td3_lightning.cli import config_files
from td3_lightning.cli.app import main
from td3_lightning.cli.checks import has_name
from td3_lightning.cli.error_messages import user_message
from td3_lightning.errors import ExitOnSignal
from td3_lightning.reporting.metrics_csv import read_metrics
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from tests.integration.test_documentation import trained_configs

ROOT = Path(__file__).parents[2]
CONFIGS = {
    path.relative_to(ROOT / "configs").as_posix(): path
    for path in sorted((ROOT / "configs").rglob("*.yaml"))
    if path.parent.name != "spaces"
}
SMALL = [
    *("--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
    *("--data.steps_per_epoch=4", "--data.batch_size=4", "--data.eval_episodes=1", "--data.test_episodes=2"),
    *("--collector.warmup_steps=10", "--model.hidden_dims=[8,8]"),
]
LONGER = ["--collector.warmup_steps=20"]  # the n-step returns of car.yaml start with n = 16
PROGRAM = [sys.executable, "-m", "td3_lightning"]
PENDULUM = "data: {env_id: Pendulum-v1}\n"
FIT = ["fit", "--config", "here.yaml"]
RECORDED = {  # numbers in an observation and in an action
    "LunarLanderContinuous-v3": (8, 2),
    "td3_lightning/CarRacing-v0": (45, 2),
    "HalfCheetah-v4": (17, 6),
}


class Unbounded(gym.Env):
    """Have actions without bounds."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,))


gym.register("Unbounded-v0", Unbounded)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Change to a working directory with one configuration."""
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("here.yaml").write_text(PENDULUM)
    return tmp_path


def environment():
    """Return the environment variables of a process that imports this package."""
    return {**os.environ, "PYTHONPATH": str(config_files.PACKAGE.parent)}


def run(*words):
    assert main([*map(str, words)]) == 0


def stop(*words):
    """Run a command that ends the process, for example --help."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    assert not ended.value.code


def error_of(capsys, *words):
    """Run an invalid command and return its error message."""
    capsys.readouterr()
    assert main([*map(str, words)]) == 2
    output = capsys.readouterr().err
    assert output.endswith("\n")
    assert output.count("\n") == 1, output
    assert "Traceback" not in output
    assert "usage" not in output
    assert not Path("lightning_logs").exists()
    return output


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Return the folder of a short run."""
    folder = tmp_path_factory.mktemp("trained")
    before = Path.cwd()
    os.chdir(folder)
    folder.joinpath("first.yaml").write_text(PENDULUM + "model: {tau: 0.01}\n")
    try:
        run("fit", "--config", "first.yaml", *SMALL)
    finally:
        os.chdir(before)
    return folder / "lightning_logs" / "first" / "version_0"


@pytest.fixture
def last(trained):
    """Return the last checkpoint of the short run."""
    return trained / "checkpoints" / "last.ckpt"


# Results of a run.


def test_fit_writes_configuration_metrics_and_checkpoints(trained):
    names = {path.relative_to(trained).as_posix() for path in trained.rglob("*") if path.is_file()}
    best = next(name for name in names if name.startswith("checkpoints/steps_14_return_-"))
    assert {"config.yaml", "metrics.csv", "curve.png", "hparams.yaml", "checkpoints/last.ckpt", best} <= names
    assert len(list(trained.glob("checkpoints/*"))) == 3
    assert len(list(trained.glob("checkpoints/replay/*.rows"))) == 1


def test_policy_loads_from_a_checkpoint_alone(last):
    policy = TD3.load_from_checkpoint(last)
    action = policy.act(np.zeros(3, dtype=np.float32))
    assert action.shape == (1,)
    assert policy.env_steps == 14


def test_fit_prints_a_description_of_the_run(capsys):
    run("fit", "--config", "here.yaml", *SMALL)
    output = capsys.readouterr()
    assert "Pendulum-v1: observations of 3 numbers, actions of 1" in output.out
    assert "lightning_logs/here/version_0" in output.out
    assert "1,000,000 rows of 26 bytes: 26.0 MB when full" in output.out
    for message in ("litlogger", "GPU available", "FLOPs", "LeafSpec"):
        assert message not in output.out + output.err


def test_version_numbers_increase():
    run("fit", "--config", "here.yaml", *SMALL)
    run("fit", "--config", "here.yaml", *SMALL, "--name", "there")
    run("fit", "--config", "here.yaml", *SMALL)
    assert {path.as_posix() for path in Path("lightning_logs").glob("*/*")} == {
        "lightning_logs/here/version_0",
        "lightning_logs/here/version_1",
        "lightning_logs/there/version_0",
    }


def test_configurations_of_the_documentation_exist():
    own = {"mine.yaml", "lightning_logs/default/version_0/config.yaml"}  # written by the reader, or by a run
    assert trained_configs() - own <= CONFIGS.keys()


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - trained_configs()))
def test_every_configuration_trains(name):
    """`test_every_command_runs` trains the configurations that the documentation names, with the same flags."""
    path = CONFIGS[name]
    if "pybullet_envs_gymnasium" in path.read_text():
        pytest.importorskip("pybullet_envs_gymnasium")
    short = ["--data.env_kwargs={max_episode_steps: 20}"] if "pixels" in path.stem else []  # rendering is slow
    before = yaml.safe_load(path.read_text()).get("ckpt_path")
    data = yaml.safe_load(path.read_text())["data"]
    if "dataset" in data:
        pytest.importorskip("minari")
        obs_dim, action_dim = RECORDED[data["env_id"]]
        recorded.write(Path("datasets"), data["dataset"]["name"], obs_dim, bounds=[1] * action_dim)
    stages = [*([before.removeprefix("last:") + ".yaml"] if before else []), name]
    for epochs, stage in enumerate(stages, 1):
        run("fit", "--config", stage, *SMALL, *LONGER, *short, f"--trainer.max_epochs={epochs}")
    assert len(list(Path("lightning_logs").rglob("last.ckpt"))) == len(stages)


def test_mixed_precision_trains():
    run("fit", "--config", "here.yaml", *SMALL, "--trainer.precision", "bf16-mixed")


@pytest.mark.parametrize(
    "flags", [["--trainer.logger=false", "--trainer.enable_checkpointing=false"], ["--trainer.fast_dev_run=true"]]
)
def test_disabled_logger_and_checkpoints_write_no_file(flags):
    run("fit", "--config", "here.yaml", *SMALL, *flags)
    assert [path.name for path in Path().iterdir()] == ["here.yaml"]


def test_schedule_in_configuration_and_checkpoint(last):
    Path("linear.yaml").write_text(
        PENDULUM + "model: {actor_lr: {class_path: td3_lightning.Linear, init_args: {start: 1, end: 0, steps: 9}}}\n"
    )
    run("fit", "--config", "linear.yaml", *SMALL)
    checkpoint = Path("lightning_logs/linear/version_0/checkpoints/last.ckpt")
    assert TD3.load_from_checkpoint(checkpoint).settings.actor_lr(3) == pytest.approx(2 / 3)
    run("test", "--ckpt_path", checkpoint, "--trainer.enable_progress_bar", "false")


# Configuration files.


def test_configuration_search_order(folder, monkeypatch):
    package = folder / "package"
    monkeypatch.setattr(config_files, "PACKAGE", package)
    for path in (
        folder / "a.yaml",
        folder / "configs/a.yaml",
        folder / "configs/b.yaml",
        folder / "configs/sub/b.yaml",
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(PENDULUM)
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        package.joinpath("configs").mkdir(parents=True, exist_ok=True)
        package.joinpath("configs", name).write_text(PENDULUM)
    found = [config_files.read_config(name).path for name in ("a.yaml", "b.yaml", "sub/b.yaml", "c.yaml")]
    assert [path.resolve().relative_to(folder).as_posix() for path in found] == [
        "a.yaml",
        "configs/b.yaml",
        "configs/sub/b.yaml",
        "package/configs/c.yaml",
    ]


def test_later_files_override_and_flags_override_files(capsys):
    Path("one.yaml").write_text(PENDULUM + "model: {tau: 0.1, policy_freq: 3, policy_noise: 0.3}\n")
    Path("two.yaml").write_text("model: {tau: 0.2, policy_freq: 4}\n")
    stop("fit", "--model.tau", "0.4", "--config", "one.yaml", "-c", "two.yaml", "--print_config")
    model = yaml.safe_load(capsys.readouterr().out)["model"]
    assert (model["tau"], model["policy_freq"], model["policy_noise"]) == (0.4, 4, 0.3)


def test_print_config_requires_no_environment(capsys):
    stop("fit", "--print_config")
    assert yaml.safe_load(capsys.readouterr().out)["model"]["tau"] == 0.005


def test_printed_configuration_can_be_used(capsys):
    stop("fit", "--config", "car.yaml", *SMALL, *LONGER, "--print_config")
    Path("printed.yaml").write_text(capsys.readouterr().out)
    run("fit", "--config", "printed.yaml")
    again = yaml.safe_load(Path("lightning_logs/car/version_0/config.yaml").read_text())
    assert again == yaml.safe_load(Path("printed.yaml").read_text())


# Checkpoints.


def test_checkpoint_overrides_files_and_flag_overrides_both(last, capsys):
    Path("other.yaml").write_text(PENDULUM + "model: {tau: 0.5, policy_noise: 0.3}\n")
    flags = ["--trainer.max_epochs=2", "--model.policy_noise=0.7", "--name", "other"]
    run("fit", *flags, "--ckpt_path", last, "--config", "other.yaml")
    assert "model.tau 0.01 (not 0.5)" in capsys.readouterr().out
    resumed = Path("lightning_logs/other/version_0/checkpoints/last.ckpt")
    model = torch.load(resumed, weights_only=True)["config"]["model"]
    assert (model["tau"], model["policy_noise"]) == (0.01, 0.7)
    clocks = torch.load(resumed, weights_only=True)["clocks"]
    assert (clocks["env_steps"], clocks["updates"]) == (18, 8)


def test_file_with_checkpoint_of_the_previous_stage(last, capsys):
    text = PENDULUM.replace("}", ", empty_replay: true}") + "model: {policy_noise: 0.3}\n"
    Path("stage.yaml").write_text(f"{text}ckpt_path: gone.ckpt\n")
    output = error_of(capsys, "fit", "--config", "stage.yaml")
    assert output.startswith(
        "ckpt_path of stage.yaml must be a checkpoint, got gone.ckpt, which does not exist. Train the"
    )
    Path("stage.yaml").write_text(f"{text}ckpt_path: {last}\n")
    assert "test requires --ckpt_path, for example" in error_of(capsys, "test", "--config", "stage.yaml")
    stop("fit", "--config", "stage.yaml", "--print_config")
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["model"]["policy_noise"], printed["model"]["tau"]) == (
        0.3,
        0.01,
    )  # from the file and from the checkpoint
    assert (printed["data"]["empty_replay"], printed["ckpt_path"]) == (True, str(last))
    run("fit", "--config", "stage.yaml", *SMALL, "--trainer.max_epochs=2")
    assert "stage overrides settings of the checkpoint: model.policy_noise 0.3 (not 0.2)." in capsys.readouterr().out
    own = Path("lightning_logs/stage/version_0/checkpoints/last.ckpt")
    assert torch.load(own, weights_only=True)["clocks"]["env_steps"] == 14 + 10 + 4
    for epochs, path in (3, "last"), (4, own.parent / ".." / "checkpoints" / "last.ckpt"):
        run("fit", "--config", "stage.yaml", *SMALL, f"--trainer.max_epochs={epochs}", f"--ckpt_path={path}")
        assert "overrides" not in capsys.readouterr().out
    assert torch.load(own, weights_only=True)["clocks"]["env_steps"] == 14 + 10 + 4 + 4 + 4
    assert main(["fit", "--config", "stage.yaml", *SMALL, "--trainer.max_epochs=2", "--ckpt_path=last"]) == 2
    output = capsys.readouterr().err
    assert output.startswith("trainer.max_epochs must be at least 4, got 2. The checkpoint has completed 4 epochs")
    assert main(["fit", "--config", "stage.yaml", *SMALL, "--trainer.fast_dev_run=1", "--ckpt_path=last"]) == 2
    assert "trainer.fast_dev_run must be false to resume a checkpoint, got true. Remove it" in capsys.readouterr().err
    line = ["fit", "--config", "stage.yaml", *SMALL, "--trainer.max_epochs=4", f"--ckpt_path={own}"]
    assert main([*line, "--data.empty_replay=true"]) == 2
    assert capsys.readouterr().err.startswith(
        "trainer.max_epochs must be at least 5, got 4. The checkpoint has completed 4 epochs"
    )
    run(*line)
    assert "The run was complete after" in capsys.readouterr().out
    run(*line, "--data.empty_replay=true", "--trainer.max_epochs=-1", "--trainer.max_time=00:00:00:01")


def test_stage_starts_from_the_newest_run_of_a_name(capsys):
    first = [*FIT, *SMALL, "--name=first"]
    Path("stage.yaml").write_text(PENDULUM.replace("}", ", empty_replay: true}") + "ckpt_path: last:first\n")
    stage = ["fit", "--config", "stage.yaml", *SMALL, "--trainer.max_epochs=2"]
    output = error_of(capsys, *stage)
    assert output.startswith(
        "last:first requires a run in lightning_logs/first, got none with a last.ckpt. Train that run"
    )
    outside = (
        "ckpt_path must be last: and the name of a run below lightning_logs, got 'last:../first'. Use last:lander,"
    )
    assert error_of(capsys, *stage, "--ckpt_path=last:../first").startswith(outside)
    for nothing in ("last:", "last:."):
        assert error_of(capsys, *stage, f"--ckpt_path={nothing}").startswith(outside.replace("last:../first", nothing))
    stop(*stage, "--print_config")  # the previous stage does not exist yet
    assert "ckpt_path: last:first" in capsys.readouterr().out
    for _ in range(2):
        run(*first)
    old, new = (f"lightning_logs/first/version_{version}/checkpoints/last.ckpt" for version in (0, 1))
    os.utime(old)  # the version number decides, not the time
    Path("lightning_logs/first/version_10/checkpoints").mkdir(parents=True)  # it contains no checkpoint
    capsys.readouterr()
    run(*stage)
    assert f"Starting this stage from {new}.\n" in capsys.readouterr().out
    run(*stage, f"--ckpt_path={old}", "--data.empty_replay=true")
    assert f"Starting this stage from {old}.\n" in capsys.readouterr().out
    run("test", "--ckpt_path=last:first", "--trainer.enable_progress_bar=false")
    run("fit", "--config", "stage.yaml", *SMALL, "--trainer.max_epochs=3", "--ckpt_path=last")  # resumes
    assert "Starting this stage" not in capsys.readouterr().out


def test_published_second_stage_starts_from_the_first():
    path = CONFIGS["walker_fine.yaml"]
    assert yaml.safe_load(path.read_text())["ckpt_path"] == "last:walker"


def test_stage_with_checkpoint_of_another_run_is_refused(last, capsys):
    """The checkpoint may belong to the previous stage, or to this stage under another name."""
    Path("stage.yaml").write_text(PENDULUM.replace("}", ", empty_replay: true}") + "ckpt_path: gone.ckpt\n")
    line = ["fit", "--config", "stage.yaml", *SMALL, "--trainer.max_epochs=2", f"--ckpt_path={last}"]
    output = error_of(capsys, *line)
    assert f"stage.yaml starts a new stage, so ckpt_path must belong to a run named stage, got {last}. Use" in output
    for empty, steps in ("true", 14 + 10 + 4), ("false", 14 + 4):
        run(*line, f"--data.empty_replay={empty}", f"--name={empty}")
        own = Path(f"lightning_logs/{empty}/version_0/checkpoints/last.ckpt")
        assert torch.load(own, weights_only=True)["clocks"]["env_steps"] == steps


@pytest.mark.parametrize(
    ("folder", "name", "has"),
    [
        ("a/version_0", "a", True),
        ("a/b/version_0", "a", False),
        ("a/b/version_0", "a/b", True),
        ("a/b/version_0", "b", False),
        ("lightning_logs/a/version_0", "lightning_logs/a", True),
        ("version_0", "", True),
    ],
)
def test_name_of_a_run_is_its_parent_folders(folder, name, has):
    assert has_name(Path("lightning_logs", folder), name) == has
    assert not has_name(None, name)


def test_files_override_checkpoint_in_a_new_stage(last, capsys):
    schedule = "{class_path: td3_lightning.Linear, init_args: {start: 0.3, end: 0.2, steps: 9}}"
    Path("stage.yaml").write_text(PENDULUM + f"model: {{policy_noise: 0.3, noise_clip: 0.4, actor_lr: {schedule}}}\n")
    new = ["--trainer.max_epochs=2", "--data.empty_replay=true", "--model.noise_clip=0.6", "--ckpt_path", last]
    stop("fit", "--config", "stage.yaml", *SMALL, *new, "--print_config")
    printed = yaml.safe_load(capsys.readouterr().out)["model"]
    assert [printed[name] for name in ("tau", "policy_noise", "noise_clip")] == [0.01, 0.3, 0.6]
    run("fit", "--config", "stage.yaml", *SMALL, *new)
    output = capsys.readouterr().out
    assert "The new stage overrides settings of the checkpoint: model.actor_lr {'class_path': " in output
    assert "} (not 0.0003), model.policy_noise 0.3 (not 0.2)." in output
    again = Path("lightning_logs/stage/version_0/checkpoints/last.ckpt")
    for epochs in (3, 4):  # resumed runs keep the settings
        config = torch.load(again, weights_only=True)["config"]
        kept = [config["model"][name] for name in ("tau", "policy_noise", "noise_clip")]
        assert kept == [0.01, 0.3, 0.6]
        run("fit", "--config", "here.yaml", *SMALL, f"--trainer.max_epochs={epochs}", "--ckpt_path", again)
    assert len(list(Path("lightning_logs").glob("*/*"))) == 1


@pytest.mark.parametrize("command", ["validate", "test"])
@pytest.mark.parametrize("config", [["--config", "here.yaml"], []])
def test_checkpoint_is_evaluated_with_or_without_config(command, config, last, capsys):
    run(command, *config, "--ckpt_path", last, "--trainer.enable_progress_bar", "false")
    output = capsys.readouterr().out
    assert "return" in output
    assert ("2 episodes" if command == "test" else "1 episode") in output
    assert not Path("lightning_logs").exists()


def test_record_writes_a_video(last, capsys):
    run("record", "--ckpt_path", last, "--episodes", "1", "--folder", "films", "--trainer.enable_progress_bar", "false")
    (video,) = Path("films").iterdir()
    assert video.suffix == ".mp4"
    assert capsys.readouterr().out.startswith(f"1 of 1  films/{video.name}: return -")


def test_checkpoint_runs_no_code_unnamed_by_the_user(last, capsys):
    checkpoint = torch.load(last, weights_only=True)
    for evil in ("subprocess.Popen", "td3_lightning.checkpoint.os.system"):
        checkpoint["config"]["data"]["wrappers"] = [{"class_path": evil}]
        torch.save(checkpoint, "evil.ckpt")
        for name in ("evil.ckpt", f"{evil}.ckpt"):  # the name of a file does not count as a setting
            torch.save(checkpoint, name)
            assert f'names "{evil}"' in error_of(capsys, "test", "--ckpt_path", name)


def test_own_progress_bar_replaces_the_default(capsys):
    small = [word for word in SMALL if "progress_bar" not in word]
    run("fit", "--config", "here.yaml", *small, "--trainer.callbacks=RichProgressBar")
    assert "the best so far" not in capsys.readouterr().out


class CreatesFile(Callback):
    """Create a file at the end of a test."""

    def on_test_end(self, *_):
        Path("noted").touch()


class BestReturn(Callback):
    """Have a NumPy number in the state."""

    best = np.float64(-np.inf)

    def on_validation_end(self, trainer, pl_module):
        self.best = np.maximum(self.best, trainer.callback_metrics["eval/return_mean"].numpy())

    def state_dict(self):
        return {"best": self.best}

    def load_state_dict(self, state_dict):
        self.best = state_dict["best"]
        Path("restored").write_text(str(self.best))


def test_numpy_number_in_callback_state_is_restored():
    words = ["fit", "--config", "here.yaml", *SMALL, "--trainer.callbacks=tests.cli.test_app.BestReturn"]
    run(*words)
    run(*words, "--ckpt_path=last", "--trainer.max_epochs=2")
    evaluations = read_metrics(Path("lightning_logs/here/version_0/metrics.csv"), ["eval/return_mean"])
    assert float(Path("restored").read_text()) == evaluations["eval/return_mean"][0, 1]


class UnsavableState(Callback):
    """Have a state that cannot be saved."""

    def state_dict(self):
        return {"when": timedelta(1)}


def test_unsupported_callback_state_is_one_sentence(capsys):
    assert main(["fit", "--config", "here.yaml", *SMALL, "--trainer.callbacks=tests.cli.test_app.UnsavableState"]) == 2
    output = capsys.readouterr().err
    assert "callbacks.UnsavableState.when must be made of tensors" in output
    assert "Traceback" not in output


class InvalidSeed(Callback):
    """Make an invalid call of Lightning."""

    def on_fit_start(self, trainer, pl_module):
        seed_everything(-1)


class MissingFile(Callback):
    """Read a file that does not exist."""

    def on_fit_start(self, trainer, pl_module):
        Path("nowhere").read_text()


@pytest.mark.parametrize(("callback", "output"), [(InvalidSeed, "-1 is not in bounds"), (MissingFile, "No such file")])
def test_error_in_user_code_keeps_its_traceback(callback, output):
    with pytest.raises((ValueError, OSError), match=output):
        main(["fit", "--config", "here.yaml", *SMALL, f"--trainer.callbacks+={__name__}.{callback.__name__}"])


def test_default_accelerator_is_cpu_if_mps_is_available(capsys, monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    stop("fit", "--config", "here.yaml", "--print_config")
    assert "accelerator: cpu\n" in capsys.readouterr().out


def test_signal_before_the_run_begins_leaves_no_folder(monkeypatch):
    def stop(*_):
        raise ExitOnSignal(143)

    monkeypatch.setattr(ReplayData, "setup", stop)
    with pytest.raises(ExitOnSignal):
        main([*FIT, *SMALL])
    assert not Path("lightning_logs").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_one_sentence(number):
    reason = os.strerror(number)
    assert user_message(OSError(number, reason)) == f"The output cannot be used ({reason}). Use another path."


def test_script_imports_from_the_working_directory(monkeypatch):
    Path("mine.py").write_text("from lightning.pytorch.callbacks import Callback\n\nclass Mine(Callback):\n    pass\n")
    words = ["fit", "--config", "here.yaml", *SMALL, "--trainer.callbacks=mine.Mine"]
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(Path.cwd()))])
    monkeypatch.setattr(sys, "argv", ["td3-lightning", *words])
    assert main(words) == 2
    assert script() == 0


def test_test_command_runs_user_callbacks(last):
    run("test", "--ckpt_path", last, "--trainer.callbacks=tests.cli.test_app.CreatesFile")
    assert Path("noted").exists()


def test_fast_dev_run_is_allowed_beside_a_run():
    for words in (["--trainer.logger=false"], ["--trainer.fast_dev_run=true"]):
        run("fit", "--config", "here.yaml", *SMALL, *words)
    assert Path("checkpoints/last.ckpt").exists()


def test_fit_continues_after_stdout_is_closed(folder):
    words = ["fit", "--config", "here.yaml", *SMALL, "--trainer.max_epochs=3"]
    words = [word for word in words if "progress_bar" not in word]
    program = f"from td3_lightning.cli.app import main; raise SystemExit(main({words}))"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    process.stdout.close()
    output = process.stderr.read().decode()
    assert process.wait() == 0, output
    assert "Error" not in output
    assert torch.load("lightning_logs/here/version_0/checkpoints/last.ckpt")["clocks"]["updates"] == 12


def test_closed_pipe_of_print_config_exits_silently():
    command = [*PROGRAM, "fit", "--config", "here.yaml", "--print_config"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 128 + signal.SIGPIPE


# Errors.


INVALID_LINES = {
    "": "td3-lightning requires a command, got none. Use one of fit, ",
    "fitt": '"fitt" is not a command; did you mean fit',
    "xyz": "use one of fit, validate, test, record, collect, plot, robustness, export, import, curves, sweep",
    "--config here.yaml fit": '"--config" is not a command',
    "fit": "data.env_id is required",
    "fit --config": "--config requires a value, got none",
    "fit --config nowhere.yaml": 'There is no configuration "nowhere.yaml" in',
    "fit --config carr.yaml": "did you mean car.yaml",
    "fit --config car": "did you mean car.yaml",
    "fit --config original": "must be a file, got a folder",
    "fit --data.env_id Nope-v1": "Nope-v1",
    "fit --data.env_id no_such_package:Nope-v1": "no_such_package",
    "fit --data.env_id CartPole-v1": "Discrete(2)",
    "fit --data.env_id Unbounded-v0": "Add td3_lightning.SymmetricActionBounds to data.wrappers",
    "fit --data.env_id CarRacing-v3": "Use data.pixels and model.encoder",
    "import": "data.env_id and files are required. Set them in a configuration",
    "test": "test requires --ckpt_path, for example",
    "test --config here.yaml": "test requires --ckpt_path, for example",
    "record --config here.yaml": "record requires --ckpt_path, for example",
    "test --ckpt_path last": "got none in lightning_logs/default",
    # The other lines follow "fit --config here.yaml".
    **{
        f"fit --config here.yaml {words}": message
        for words, message in {
            "--ckpt_path no.ckpt": "no.ckpt",
            "--data.batchsize 3": "did you mean data.batch_size",
            "--data.batch 3": "did you mean data.batch_size",
            "--gamma 0.9": "did you mean data.gamma?",
            "--data.n-step 3": "did you mean data.n_step?",
            "--zzz": 'no setting "zzz"',
            "stray": '"stray" does not belong to a flag',
            "car": "car does not belong to a flag; did you mean --config car.yaml?",
            "a.ckpt": "did you mean --ckpt_path a.ckpt?",
            "-data.gamma 0.9": "-data.gamma must begin with two dashes; did you mean --data.gamma?",
            "--data.batch_size": "--data.batch_size requires a value, got none",
            "--data.batch_size x": "data.batch_size must be an integer, got x.",
            "--data.batch_size 0": "batch_size must be in [1, 1000000], got 0",
            "--data.capacity 1e6": "data.capacity must be an integer, got 1000000.0. Use 1000000.",
            "--data.gamma 0,9": "data.gamma must be a number, got 0,9.",
            "--data.env_kwargs 3": "data.env_kwargs must be a mapping or null, got 3.",
            "--seed_everything null": "seed_everything must be an integer from 0 to 4294967295.",
            "--seed_everything -1": "seed_everything must be an integer from 0 to 4294967295.",
            "--model.obs_dim 3": "model.obs_dim is taken from the environment",
            "--model.hidden_dims 256,256": "model.hidden_dims must be a list, got 256,256.",
            "--model.critic_loss l1": "model.critic_loss must be one of mse, huber, got l1.",
            "--model.encoder Trunkk": "model.encoder does not accept Trunkk; did you mean td3_lightning.Trunk?",
            "--model TD9": "or a subclass, got TD9. Use td3_lightning.TD7.",
            "--trainer.accelerator gpux": "gpux",
            "--trainer.accelerator gpu": "Lightning does not accept the trainer settings: ",
            "--trainer.precision fp3": "got fp3",
            "--trainer.max_epochs -5": "max_epochs",
            "--trainer.devices many": "Lightning does not accept the trainer settings",
            "--trainer.max_steps 1000": "must be -1, got 1000. Use --trainer.max_epochs: an epoch has",
            "--trainer.barebones=true": "must be False, got True. Use --trainer.logger false",
            "--trainer.gradient_clip_val=1.0": "must be None, got 1.0. Use --model.max_grad_norm",
            "--trainer.accumulate_grad_batches=2": "larger --data.batch_size",
            "--trainer.overfit_batches=10": "must be 0.0, got 10. Use --trainer.limit_train_batches",
            "--trainer.check_val_every_n_epoch 0": "must be above 0, got 0. Use --trainer.limit_val_batches 0",
            "--trainer.default_root_dir here.yaml": "here.yaml, which is not a folder. Use another folder with",
            "--trainer.logger CometLogger": "Requirement 'comet-ml",
            "--trainer.callbacks+=td3_lightning.Collector": "because the command line adds one. Remove it",
            "--trainer.callbacks+=EMAWeightAveraging": "Use td3_lightning.AveragedWeights",
            "--trainer.callbacks+=td3_lightning.StopWhenSolve": "did you mean td3_lightning.StopWhenSolved?",
            "--trainer.callbacks+=td3_lightning.PolicyCheckpoint --trainer.callbacks.early_episodes=0": (
                "early_episodes must be in [1, 10000], got 0. Use a larger value."
            ),
            "--trainer.plugins+=lightning.pytorch.plugins.io.AsyncCheckpointIO": "must not contain AsyncCheckpointIO",
        }.items()
    },
}
INVALID_FILES = {
    "data: [1, {": "bad.yaml must be valid YAML",
    "": "must be a mapping with sections such as data and trainer, got nothing. Add them.",
    "- 1": "must be a mapping with sections such as data and trainer, got list",
    "data: {env_id: Pendulum-v1}\nmodel: {tau: 0.1}\nmodel: {policy_freq: 3}": '"model" occurs twice',
    "data: {env_id: Pendulum-v1}\nmodel: {tau: 0.1, tau: 0.2}": '"tau" occurs twice',
    "data: {env_id: Pendulum-v1, gamma: 0.9,, tau: 1}": "line 1, column",
    "model: {tau: 0.1}": "data.env_id is required",
    "{data: {env_id: Pendulum-v1}, model: [8]}": "must be a mapping, got [8]. Write one setting per line",
    "data: {env_id: Pendulum-v1}\nname: 5": "name must be",
    "data: {env_id: Pendulum-v1, batchsize: 3}": "did you mean data.batch_size",
    "data: {env_id: Pendulum-v1}\ntrainer: {max_epoch: 3}": "did you mean trainer.max_epochs",
    "data: {env_id: Pendulum-v1, batch_size: many}": "data.batch_size must be an integer, got many.",
    "data: {env_id: Pendulum-v1, env_kwargs: {nope: 1}}": "nope",
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: td3_lightning.Nope}]}": "does not accept td3_lightning.Nope",
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: nope.Nope}]}": "nope",
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: td3_lightning.ActionRepeat}]}": "requires repeat",
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: td3_lightning.Pedals}]}": "Pedals",
    "data: {env_id: Pendulum-v1}\ncollector: {warmup_steps: 0}": "warmup_steps must be in [1, 1000000000], got 0",
    "data: {env_id: Pendulum-v1}\nmodel: {tau: 2}": "tau must be in (0, 1], got 2.0. The paper uses 0.005.",
    "data: {env_id: Pendulum-v1}\nmodel: {hidden_dims: 256}": "model.hidden_dims must be a list, got 256.",
    "data: {env_id: Pendulum-v1}\nmodel: {actor_lr: fast}": "actor_lr must be a number, got fast.",
    "data: {env_id: Pendulum-v1}\nmodel: {actor_lr: {class_path: td3_lightning.Linear, init_args: {start: 1}}}": (
        "requires end"
    ),
}


@pytest.mark.parametrize("case", INVALID_LINES)
def test_invalid_command_line_is_one_sentence(case, capsys):
    assert INVALID_LINES[case] in error_of(capsys, *shlex.split(case))


@pytest.mark.parametrize("text", INVALID_FILES)
def test_invalid_file_is_one_sentence(text, capsys):
    Path("bad.yaml").write_text(text)
    assert INVALID_FILES[text] in error_of(capsys, "fit", "--config", "bad.yaml")


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_file_in_another_encoding_is_one_sentence(encoding, capsys):
    Path("bad.yaml").write_text("name: café", encoding=encoding)
    assert "bad.yaml must be UTF-8, got another encoding at byte" in error_of(capsys, "fit", "--config", "bad.yaml")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/tmp", "a\0b"])
def test_name_outside_the_folder_of_runs_is_refused(name, capsys):
    message = error_of(capsys, "fit", "--config", "here.yaml", "--name", name)
    assert f"name must be a name below lightning_logs, got {name!r}. Use --trainer.default_root_dir" in message
    assert not Path("lightning_logs").exists()


@pytest.mark.parametrize("command", ["plot", "robustness"])
def test_unusable_folder_is_refused_before_the_episodes(command, last, capsys):
    Path("taken").touch()
    message = error_of(capsys, command, "--ckpt_path", last, "--folder", "taken", "--episodes", "1")
    assert message.endswith("taken cannot be used (File exists). Use another path.\n")


@pytest.mark.parametrize("content", [b"", b"nonsense", bytes(9999)], ids=["empty", "text", "zeros"])
def test_invalid_checkpoint_is_one_sentence(content, capsys):
    Path("broken.ckpt").write_bytes(content)
    said = error_of(capsys, "test", "--config", "here.yaml", "--ckpt_path", "broken.ckpt")
    assert said.startswith("broken.ckpt is damaged, or not a checkpoint of td3_lightning")


def test_truncated_checkpoint_is_one_sentence(last, capsys):
    Path("short.ckpt").write_bytes(last.read_bytes()[:-999])
    assert "short.ckpt is damaged, or not a checkpoint" in error_of(capsys, "test", "--ckpt_path", "short.ckpt")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["fit", "--config", "here.yaml", "--model.hidden_dims", "[16]"],
            "hidden_dims must be [8, 8], as in the checkpoint, got [16]. Remove the setting.",
        ),
        (
            ["test", "--model.num_critics", "3"],
            "num_critics must be 2, as in the checkpoint, got 3. Remove the setting.",
        ),
        *(
            (
                [*command, f"--model.normalize_{name}", "true"],
                f"normalize_{name} must be False, as in the checkpoint, got True. Remove the setting.",
            )
            for name in ("observations", "rewards")
            for command in (["test"], ["fit", "--config", "here.yaml"])
        ),
        (
            ["test", "--data.env_id", "MountainCarContinuous-v0"],
            "obs_dim must be 3, as in the checkpoint, got 2; action",
        ),
        (
            ["test", "--data.env_id", "MountainCarContinuous-v0"],
            "Use the environment in which the checkpoint was trained.",
        ),
        (["fit", "--config", "car.yaml"], "got td3_lightning/CarRacing-v0. Use the configuration of the checkpoint"),
        (["fit"], "fit requires --config to resume from"),
        (["record", "--episodes", "0"], "episodes must be in [1, 1000000], got 0"),
        (["fit", "--config", "here.yaml", "--data.num_envs", "2"], "num_envs"),
        (
            ["fit", "--config", "here.yaml", "--data.capacity", "99"],
            "capacity must be 1000000, as in the saved replay",
        ),
    ],
)
def test_mismatched_checkpoint_is_one_sentence(words, expected, last, capsys):
    assert expected in error_of(capsys, *words, "--ckpt_path", last)


def test_error_names_config_beside_published_checkpoint(last, capsys):
    Path("best.ckpt").write_bytes(last.read_bytes())
    Path("config.yaml").write_bytes(last.parent.parent.joinpath("config.yaml").read_bytes())
    assert "got none. Use --config config.yaml." in error_of(capsys, "fit", "--ckpt_path", "best.ckpt")


def test_checkpoint_of_a_newer_version_is_one_sentence(last, capsys):
    torch.save(torch.load(last, weights_only=True) | {"format": 2}, "other.ckpt")
    expected = "must have at most format 1, got 2 from a newer version of td3_lightning"
    assert expected in error_of(capsys, "fit", "--config", "here.yaml", "--ckpt_path", "other.ckpt")


def test_bug_keeps_its_traceback(monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(Replay, "__init__", broken)
    with pytest.raises(ZeroDivisionError):
        main(["fit", "--config", "here.yaml"])


# The program.


def program(*words):
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, env=environment())


def test_program_trains():
    ended = program("fit", "--config", "here.yaml", *SMALL)
    assert ended.returncode == 0, ended.stderr
    assert Path("lightning_logs/here/version_0/metrics.csv").exists()


def test_program_exits_with_2_and_one_sentence(folder):
    ended = program("fit", "--config", "here.yaml", "--data.batch_size", "0")
    assert ended.returncode == 2
    assert ended.stderr == "batch_size must be in [1, 1000000], got 0. Use a larger value.\n"
    assert [path.name for path in folder.iterdir()] == ["here.yaml"]


def test_closed_terminal_saves_and_stops_the_run():
    last = Path("lightning_logs/here/version_0/checkpoints/last.ckpt")
    process, terminal = pty.fork()
    if process == 0:
        small = [word for word in SMALL if "progress_bar" not in word]
        os.execve(sys.executable, [*PROGRAM, *FIT, *small, "--trainer.max_epochs=100000"], environment())
    try:

        def has_saved():
            if select.select([terminal], [], [], 0.1)[0]:
                os.read(terminal, 65536)
            return last.exists()

        wait_for(has_saved, LIMIT)
        before = read_checkpoint(last)["clocks"]["updates"]
        time.sleep(0.5)
    finally:
        os.close(terminal)
        _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert read_checkpoint(last)["clocks"]["updates"] > before


def test_ctrl_c_outside_training_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_like_lightning(_: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)

    monkeypatch.setattr(cli, "CommandLine", exit_like_lightning)
    assert cli.main(["fit"]) == 130
    monkeypatch.setattr(cli, "CommandLine", lambda _: sys.exit(3))
    with pytest.raises(SystemExit) as ended:
        cli.main(["fit"])
    assert ended.value.code == 3


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
LOST = [
    f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:21416.\nGood luck!",
    f"{GLOO}pair.cc:534] Read error [127.0.0.1]:3512: Connection reset by peer",
    f"{GLOO}pair.cc:534] Connection reset by peer [127.0.0.1]:3512",
    f"{GLOO}pair.cc:497] writev [127.0.0.1]:3512: Broken pipe",
    f"{GLOO}pair.cc:760] Read timeout [127.0.0.1]:3512",
    f"{GLOO}pair.cc:700] Socket closed [127.0.0.1]:3512",
    f"{GLOO}pair.cc:280] Pair is not connected ([127.0.0.1]:3512)",
    f"{GLOO}pair.cc:144] Application timeout caused pair closure",
    f"{GLOO}unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete",
    f"{GLOO}socket.cc:200] connect [127.0.0.1]:3512: Connection refused",
    "Gloo connectFullMesh failed with [../rendezvous/context.cc:42] no pair",
    "failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
    "The client socket has timed out after 60000ms while trying to connect to (127.0.0.1, 29500).",
    "NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error, NCCL version 2.21.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "NCCL error: internal error\nLast error:\nNet : Connection closed by remote peer node<43236>",
    "NCCL communicator was aborted on rank 0.",
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
]


@pytest.mark.parametrize("text", LOST)
def test_lost_peer_is_one_sentence(text, monkeypatch, capsys):
    def lose(words):
        raise RuntimeError("in a hook") from RuntimeError(text)

    monkeypatch.setattr("td3_lightning.cli.app.CommandLine", lose)
    assert main(["fit"]) == 1
    assert capsys.readouterr().err == (
        "Another process of this run has ended, so this one ends too. Read the output of the other process.\n"
    )


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 4x8)"),
        RuntimeError(
            "[enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find interface: eth9"
        ),
        ConnectionResetError("Connection reset by peer"),
    ],
)
def test_other_errors_are_not_lost_peers(error):
    assert not is_lost_peer(error)

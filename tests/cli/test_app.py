"""Test the command line: accepted words, error messages and the precedence of settings."""

import errno
import os
import pty
import pydoc
import re
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
from td3_lightning.cli import config_files, suggestions
from td3_lightning.cli.app import main
from td3_lightning.cli.checks import has_name
from td3_lightning.cli.command_line import CommandLine
from td3_lightning.cli.commands import COMMANDS
from td3_lightning.cli.error_messages import explain_parser_error, user_message
from td3_lightning.cli.stage import newest_version
from td3_lightning.cli.trainer import Trainer
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
GROUPS = ("model", "data", "collector", "checkpoint", "trainer")  # in the order of --help


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
    if value := re.search(r" must be .*, got (.*)", output):
        assert re.search(r"(\. |; )\w", value[1]), f"no fix in {output}"
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


def test_only_the_typed_command_is_added_to_the_parser(monkeypatch):
    added, prepare = [], CommandLine._prepare_subcommand_parser

    def record(line, kind, command, **kwargs):
        added.append(command)
        return prepare(line, kind, command, **kwargs)

    monkeypatch.setattr(CommandLine, "_prepare_subcommand_parser", record)
    run("fit", "--config", "here.yaml", *SMALL)
    assert added == ["fit"]
    with pytest.raises(SystemExit):
        run("--help")
    assert added[1:] == [*COMMANDS]


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
    found = [config_files.find_config(name) for name in ("a.yaml", "b.yaml", "sub/b.yaml", "c.yaml")]
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


@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"], ["record", "--help"]])
def test_help_lists_commands_and_settings(words, capsys):
    stop(*words)
    output = capsys.readouterr().out
    if words[0] == "--help":
        assert all(command in output for command in COMMANDS)
    else:
        assert "--data.batch_size" in output
        groups = [re.search(rf"^  --{name} ", output, re.MULTILINE) for name in GROUPS]
        assert [group.start() for group in groups] == sorted(group.start() for group in groups)
        assert "relative to half the action range" in re.sub(r"\s+", " ", output)
        assert "<function" not in output  # the address of a function would change with each start


def test_help_describes_each_command_in_one_sentence(capsys):
    stop("--help")
    output = re.sub(r"\s+", " ", capsys.readouterr().out)
    for command in COMMANDS:
        sentence = (vars(Trainer)[command].__doc__ or "").partition("\n")[0]
        assert re.fullmatch(r"[A-Z].*[\w`]\.", sentence), command
        assert f" {command} {sentence} " in f"{output} "


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


@pytest.mark.parametrize("name", ["2025-31-12", "0x_", "!!bool x", "!!timestamp x"])
def test_flag_of_any_text_is_read_beside_a_checkpoint(name, last, capsys):
    stop(*FIT, "--ckpt_path", last, "--name", name, "--print_config")
    assert yaml.safe_load(capsys.readouterr().out)["name"] == name


@pytest.mark.parametrize("text", ["2025-31-12", "!!bool x", "!!timestamp x", "!!int x", "{a: !!bool x}"])
def test_flag_that_is_no_valid_yaml_is_text(text, capsys):
    stop(*FIT, "--trainer.default_root_dir", text, "--print_config")
    assert yaml.safe_load(capsys.readouterr().out)["trainer"]["default_root_dir"] == text
    assert error_of(capsys, *FIT, "--model.tau", text).startswith("model.tau must be a ")
    assert error_of(capsys, *FIT, "--data.env_kwargs", text).startswith("data.env_kwargs must be a mapping")
    assert error_of(capsys, *FIT, "--data.batch_size", text).startswith(
        f"data.batch_size must be an integer, got {text}"
    )


def test_mapping_may_override_keys_that_it_merges():
    text = "a: {b: &b {<<: {x: 1}, x: 2}}\nc: {<<: *b}\n"
    assert yaml.load(text, config_files.StrictLoader) == {"a": {"b": {"x": 2}}, "c": {"x": 2}}


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


def test_newest_version_has_the_highest_number(folder):
    for version in ("version_9", "version_10", "version_x", "version_11"):
        folder.joinpath("car", version, "checkpoints").mkdir(parents=True)
        if version != "version_11":
            folder.joinpath("car", version, "checkpoints", "last.ckpt").touch()
    assert newest_version(folder / "car").parent.parent.name == "version_10"


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


def test_enum_default_is_saved_in_config_yaml():
    run("fit", "--config", "here.yaml", *SMALL, "--trainer.callbacks=Timer", "--trainer.callbacks.duration=00:01:00:00")
    (saved,) = Path("lightning_logs").rglob("config.yaml")
    assert yaml.safe_load(saved.read_text())["trainer"]["callbacks"][0]["init_args"]["interval"] == "step"
    run("fit", "--config", saved, "--name", "again")


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


def test_duration_out_of_range_is_one_sentence(capsys):
    said = error_of(capsys, *FIT, "--trainer.max_time=99999999999:00:00:00")
    assert "Lightning does not accept the trainer settings: Python int too large" in said


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
    "no command": ([], "td3-lightning requires a command, got none. Use one of fit, "),
    "unknown command": (["fitt"], '"fitt" is not a command; did you mean fit'),
    "another program's command": (["train"], '"train" is not a command; did you mean fit?'),
    "a command in capitals": (["FIT"], "did you mean fit?"),
    "help without dashes": (["help"], "did you mean --help?"),
    "strange command": (
        ["xyz"],
        "use one of fit, validate, test, record, collect, plot, robustness, export, import, curves, sweep",
    ),
    "config before the command": (["--config", "here.yaml", "fit"], '"--config" is not a command'),
    "missing config": (["fit", "--config", "nowhere.yaml"], 'There is no configuration "nowhere.yaml" in'),
    "folder as config": (["fit", "--config", "original"], "The configuration original must be a file, got a folder;"),
    "pipe as config": (
        ["fit", "--config", "/dev/null"],
        "The configuration /dev/null must be a file, got a pipe or a device. Save it as a YAML file.",
    ),
    "mistyped config": (["fit", "--config", "carr.yaml"], "did you mean car.yaml"),
    "config without suffix": (["fit", "--config", "car"], "did you mean car.yaml"),
    "config without value": (["fit", "--config"], "--config requires a value, got none"),
    "no config at all": (["fit"], "data.env_id is required"),
    "unknown flag": (["fit", "--config", "here.yaml", "--data.batchsize", "3"], "did you mean data.batch_size"),
    "strange flag": (["fit", "--config", "here.yaml", "--zzz"], 'no setting "zzz"'),
    "word without a flag": (["fit", "--config", "here.yaml", "stray"], '"stray" does not belong to a flag'),
    "abbreviated flag": (["fit", "--config", "here.yaml", "--data.batch", "3"], "did you mean data.batch_size"),
    "flag without value": (
        ["fit", "--config", "here.yaml", "--data.batch_size"],
        "--data.batch_size requires a value, got none",
    ),
    "value of the wrong type": (
        ["fit", "--config", "here.yaml", "--data.batch_size", "x"],
        "data.batch_size must be an integer, got x.",
    ),
    "no seed": (
        ["fit", "--config", "here.yaml", "--seed_everything", "null"],
        "seed_everything must be an integer, got null. Use 0, for example.",
    ),
    "endless epoch": (
        ["fit", "--config", "here.yaml", "--data.steps_per_epoch", "9" * 20],
        "steps_per_epoch must be in [1, 1000000000], got 99999999999999999999. Use a smaller value.",
    ),
    "import of nothing": (["import"], "data.env_id and files are required. Set them in a configuration"),
    "long list of configurations": (["fit", "--config", "zzz"], "walker_fine.yaml, or one in demonstrations, "),
    "callback out of range": (
        [*FIT, "--trainer.callbacks+=td3_lightning.PolicyCheckpoint", "--trainer.callbacks.early_episodes=0"],
        "early_episodes must be in [1, 10000], got 0. Use a larger value.",
    ),
    "negative seed": (
        ["fit", "--config", "here.yaml", "--seed_everything", "-1"],
        "seed_everything must be at least 0 and below 4294967296, got -1. Use another value.",
    ),
    "linked": (["fit", "--config", "here.yaml", "--model.obs_dim", "3"], "model.obs_dim is taken from the environment"),
    "missing checkpoint": (["fit", "--config", "here.yaml", "--ckpt_path", "no.ckpt"], "no.ckpt"),
    "test without checkpoint": (["test", "--config", "here.yaml"], "test requires --ckpt_path, for example"),
    "record without checkpoint": (["record", "--config", "here.yaml"], "record requires --ckpt_path, for example"),
    "unknown environment": (["fit", "--data.env_id", "Nope-v1"], "Nope-v1"),
    "unknown package": (["fit", "--data.env_id", "no_such_package:Nope-v1"], "no_such_package"),
    "discrete actions": (["fit", "--data.env_id", "CartPole-v1"], "Discrete(2)"),
    "unbounded actions": (
        ["fit", "--data.env_id", "Unbounded-v0"],
        "Add td3_lightning.SymmetricActionBounds to data.wrappers",
    ),
    "accelerator": (["fit", "--config", "here.yaml", "--trainer.accelerator", "gpux"], "gpux"),
    "precision": (["fit", "--config", "here.yaml", "--trainer.precision", "fp3"], "or null, got fp3."),
    "epochs": (["fit", "--config", "here.yaml", "--trainer.max_epochs", "-5"], "max_epochs"),
    "barebones": (
        ["fit", "--config", "here.yaml", "--trainer.barebones=true"],
        "trainer.barebones must be False, got True. Use --trainer.logger false",
    ),
    "clipping": (
        ["fit", "--config", "here.yaml", "--trainer.gradient_clip_val=1.0"],
        "trainer.gradient_clip_val must be None, got 1.0. Use --model.max_grad_norm",
    ),
    "a second Collector": (
        ["fit", "--config", "here.yaml", "--trainer.callbacks+=td3_lightning.Collector"],
        "must not contain a Collector, because the command line adds one. Remove it",
    ),
    "callback for automatic optimization": (
        ["fit", "--config", "here.yaml", "--trainer.callbacks+=LearningRateFinder"],
        "trainer.callbacks must not contain LearningRateFinder, because it requires automatic optimization",
    ),
    "callback without a saved state": (
        [*FIT, "--trainer.callbacks+=ModelPruning", "--trainer.callbacks.pruning_fn=l1_unstructured"],
        "trainer.callbacks must not contain ModelPruning, because checkpoints do not contain its masks. Remove it.",
    ),
    "callback that saves on exceptions": (
        [*FIT, "--trainer.callbacks+=OnExceptionCheckpoint", "--trainer.callbacks.dirpath=there"],
        "must not contain OnExceptionCheckpoint, because a run that fails already saves last.ckpt. Remove it",
    ),
    "callback for a single loss": (
        [*FIT, "--trainer.callbacks+=SpikeDetection"],
        "trainer.callbacks must not contain SpikeDetection, because it requires a single loss",
    ),
    "checkpoints by optimizer steps": (
        [*FIT, "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps=30"],
        "Use every_n_epochs",
    ),
    "checkpoints by time": (
        [*FIT, "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.train_time_interval=00:00:00:01"],
        "Use every_n_epochs",
    ),
    "asynchronous checkpoints": (
        [*FIT, "--trainer.plugins+=lightning.pytorch.plugins.io.AsyncCheckpointIO"],
        "trainer.plugins must not contain AsyncCheckpointIO",
    ),
    "overfit_batches": (
        [*FIT, "--trainer.overfit_batches=10"],
        "trainer.overfit_batches must be 0.0, got 10. Use --trainer.limit_train_batches",
    ),
    "negative logging interval": (
        [*FIT, "--trainer.log_every_n_steps=-1"],
        "trainer.log_every_n_steps must be at least 0, got -1",
    ),
    "missing package": (
        [*FIT, "--trainer.precision=transformer-engine"],
        "Lightning does not accept the trainer settings",
    ),
    "weight averaging of Lightning": (
        ["fit", "--config", "here.yaml", "--trainer.callbacks+=EMAWeightAveraging"],
        "would resume differently. Use td3_lightning.AveragedWeights",
    ),
    "weight averaging twice": (
        ["fit", "--config", "here.yaml", *2 * ["--trainer.callbacks+=td3_lightning.AveragedWeights"]],
        "not accept the trainer settings: Found more than one stateful callback of type `AveragedWeights`",
    ),
    "text for a number of a callback": (
        ["fit", "--trainer.callbacks+=td3_lightning.AveragedWeights", "--trainer.callbacks.decay=slow"],
        "trainer.callbacks.decay must be a number, got slow.",
    ),
    "argument without a callback": (
        ["fit", "--config", "here.yaml", "--trainer.callbacks.init_args.decay", "0.9"],
        'trainer.callbacks: lightning.Callback has no argument "decay". Use the form {class_path:',
    ),
    "evaluation every 0 epochs": (
        ["fit", "--config", "here.yaml", "--trainer.check_val_every_n_epoch", "0"],
        "trainer.check_val_every_n_epoch must be above 0, got 0. Use --trainer.limit_val_batches 0",
    ),
    "evaluation interval 0": (
        ["fit", "--config", "here.yaml", "--trainer.val_check_interval", "0"],
        "trainer.val_check_interval must be above 0, got 0",
    ),
    "a schedule's argument for a number": (
        ["fit", "--config", "here.yaml", "--model.actor_lr.init_args.start", "0.1"],
        "model.actor_lr must be a single value, got an argument of it. Use --model.actor_lr td3_lightning.Linear",
    ),
    "an argument for a number": (
        ["fit", "--config", "here.yaml", "--model.num_critics.init_args.start", "1"],
        "model.num_critics must be a single value, got an argument of it. Use --model.num_critics with a value.",
    ),
    "an argument for the seed": (
        ["fit", "--config", "here.yaml", "--seed_everything.start", "1"],
        "must be a single value",
    ),
    "devices": (
        ["fit", "--config", "here.yaml", "--trainer.devices", "many"],
        "Lightning does not accept the trainer settings",
    ),
    "networks larger than memory": (
        ["fit", "--config", "here.yaml", "--model.hidden_dims", "[100000000,100000000]"],
        "hidden_dims and num_critics must be small enough to train",
    ),
    "batches larger than memory": (
        ["fit", "--config", "here.yaml", "--data.batch_size", "100000000000"],
        "batch_size must be in [1, 1000000], got 100000000000. Use a smaller value.",
    ),
    "root dir is a file": (
        ["fit", "--config", "here.yaml", "--trainer.default_root_dir", "here.yaml", *SMALL],
        "here.yaml, which is not a folder. Use another folder with --trainer.default_root_dir",
    ),
    "evaluation interval longer than an epoch": (
        ["fit", "--config", "here.yaml", *SMALL, "--trainer.val_check_interval", "1000"],
        "Lightning does not accept these settings: `val_check_interval` (1000) must be less",
    ),
    "missing logger package": (
        ["fit", "--config", "here.yaml", "--trainer.logger", "CometLogger"],
        "lightning.pytorch.loggers.CometLogger must have its package installed, got no comet-ml",
    ),
    "accumulation": (
        ["fit", "--config", "here.yaml", "--trainer.accumulate_grad_batches=2"],
        "larger --data.batch_size",
    ),
    "frames": (["fit", "--data.env_id", "CarRacing-v3"], "Use data.pixels and model.encoder"),
    "test without anything": (["test"], "test requires --ckpt_path, for example"),
    "last without a run": (["test", "--ckpt_path", "last"], "got none in lightning_logs/default"),
    "unknown callback": (
        ["fit", "--config", "here.yaml", "--trainer.callbacks+=Stop"],
        "trainer.callbacks must be a class, got Stop; did you mean td3_lightning.StopWhenSolved?",
    ),
}
INVALID_FILES = {
    "data: {1: 2}": "A key in bad.yaml must be the name of a setting, got 1. Use",
    "'': 3": "A key in bad.yaml must be the name of a setting, got ''. Use",
    "model: {null: 3}": "A key in bad.yaml must be the name of a setting, got None. Use",
    "data: [1, {": "bad.yaml must be valid YAML",
    "": "must be a mapping with sections such as data and trainer, got nothing. Add them.",
    "- 1": "must be a mapping with sections such as data and trainer, got list",
    "data: {env_id: Pendulum-v1}\nmodel: {tau: 0.1}\nmodel: {policy_freq: 3}": '"model" occurs twice',
    "data: {env_id: Pendulum-v1}\nmodel: {tau: 0.1, tau: 0.2}": '"tau" occurs twice',
    "model: {tau: 0.1}": "data.env_id is required",
    "data: 3": "must be a mapping, got 3. Write one setting per line below it.",
    "{data: {env_id: Pendulum-v1}, model: [8]}": "must be a mapping, got [8]. Write one setting per line",
    "{data: {env_id: Pendulum-v1}, collector: true}": "must be a mapping, got True. Write one setting per line",
    "{data: {env_id: Pendulum-v1}, trainer: 1}": "must be a mapping, got 1. Write one setting per line",
    f"data: {{env_id: Pendulum-v1, env_kwargs: {{g: {2**64}}}}}": (
        "data.env_kwargs.g must be an integer of at most 64 bits, got an integer of 65 bits. Use a value that"
    ),
    f"{{data: {{env_id: Pendulum-v1}}, trainer: {{max_epochs: {2**64}}}}}": (
        "trainer.max_epochs must be an integer of at most 64 bits, got an integer of 65 bits. Use a value that"
    ),
    "data: {env_id: Pendulum-v1}\nname: 5": "name must be",
    "data: {env_id: Pendulum-v1}\nname: [a]": "name must be",
    "data: {env_id: Pendulum-v1, gamma: ._}  # ä": "must be valid YAML, got an error: could not convert string",
    # A mapping of ten values that is merged ten times, and so on; expanded, it has 10**9.
    "a0: &a0 {"
    + ", ".join(f"k{each}: 1" for each in range(10))
    + "}\n"
    + "\n".join(
        f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}" for level in range(1, 9)
    ): "more than 100,000 merged values (line",
    "a: &a [*a]": "must have at most 100,000 values, got aliases to more",
    "data: {env_id: Pendulum-v1, gamma: 0.9,, tau: 1}": "line 1, column",
    "name: !!bool x": "must be valid YAML, got an error: 'x'. Correct it.",
    "data: 2024-13-01": "must be valid YAML, got an error: month must be in 1..12.",
    "data: {env_id: Pendulum-v1}\n--- 1": "expected a single document in the stream but found another document (line 2",
    "a: " + "[" * 1000: "must be valid YAML, got too many nested brackets. Remove them.",
    "data: {env_id: Pendulum-v1, env_kwargs: {max_episode_steps: 1e2}}": "got 100.0. Use 100.",
    "data: {env_id: Pendulum-v1, capacity: 1e6}": "data.capacity must be an integer, got 1000000.0. Use 1000000.",
    "data: {env_id: Pendulum-v1, buffer_size: 9}": 'no setting "data.buffer_size"; use --data.capacity.',
    "{data: {env_id: Pendulum-v1}, model: {hidden_dims: '8,8'}}": "got 8,8. Use [8,8].",
    "{data: {env_id: Pendulum-v1}, model: {hidden_dims: [1e2]}}": "must be an integer, got 100.0. Use 100.",
    "{data: {env_id: Pendulum-v1}, model: {encoder: {class_path: td3_lightning.Trunkk}}}": (
        "did you mean td3_lightning.Trunk?"
    ),
    "{data: {env_id: Pendulum-v1}, model: {encoder: {class_path: td3_lightning.Trunk, init_args: {width: 8}}}}": (
        'td3_lightning.Trunk has no argument "width"; did you mean widths?'
    ),
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: gymnasium.wrappers.ClipActions}]}": (
        "got gymnasium.wrappers.ClipActions (module 'gymnasium.wrappers' has no attribute 'ClipActions'); did you mean "
        "gymnasium.wrappers.ClipAction?"
    ),
    "data: {env_id: Pendulum-v1, batchsize: 3}": "did you mean data.batch_size",
    "data: {env_id: Pendulum-v1}\ndatta: {n_step: 3}": "data.n_step",
    "data: {env_id: Pendulum-v1}\ntrainer: {max_epoch: 3}": "did you mean trainer.max_epochs",
    "data: {env_id: Pendulum-v1, batch_size: many}": "data.batch_size must be an integer, got many.",
    "data: {env_id: Pendulum-v1, batch_size: 2.5}": "data.batch_size must be an integer, got 2.5.",
    "data: {env_id: Pendulum-v1, env_kwargs: 3}": "data.env_kwargs must be a mapping or null, got 3.",
    "data: {env_id: Pendulum-v1, env_kwargs: {nope: 1}}": "nope",
    "data: {env_id: Pendulum-v1, train_kwargs: {nope: 1}}": "nope",
    "data: {env_id: Pendulum-v1, batch_size: 0}": "batch_size must be in [1, 1000000], got 0",
    "data: {env_id: Pendulum-v1, num_envs: 0}": "num_envs",
    "data: {env_id: Pendulum-v1, capacity: 1}": "capacity",
    "data: {env_id: Pendulum-v1, reward_scale: .inf}": "reward_scale must be in (0, 1e+10], got inf",
    "data: {env_id: Pendulum-v1, eval_episodes: 0}": "eval_episodes",
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: td3_lightning.Nope}]}": "td3_lightning",
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: nope.Nope}]}": "nope",
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: gymnasium.wrappers.vector.NormalizeObservation}]}": (
        "does not accept gymnasium.wrappers.vector.NormalizeObservation; did you mean"
    ),
    "{data: {env_id: Pendulum-v1}, model: {encoder: torch.nn.Linear}}": (
        "model.encoder does not accept torch.nn.Linear; use one of td3"
    ),
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: gymnasium.wrappers.GrayscaleObservation}]}": (
        "GrayscaleObservation does not fit Pendulum-v1"
    ),
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: gymnasium.wrappers.NormalizeObservation}]}": "normalize_obs",
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: gymnasium.wrappers.NormalizeReward}]}": "normalize_rewards",
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: td3_lightning.ActionRepeat}]}": (
        "requires repeat, got none. Set it under init_args."
    ),
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: td3_lightning.ActionRepeat, init_args: {repeats: 2}}]}": (
        "did you mean repeat"
    ),
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: td3_lightning.ActionRepeat, init_args: {repeat: 0}}]}": (
        "repeat of ActionRepeat must be at least 1, got 0"
    ),
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: td3_lightning.Pedals}]}": "Pedals",
    "data: {env_id: Pendulum-v1}\ncollector: {warmup_steps: 0}": "warmup_steps must be in [1, 1000000000], got 0",
    "data: {env_id: Pendulum-v1}\nmodel: {tau: 2}": "tau must be in (0, 1], got 2.0. The paper uses 0.005.",
    "data: {env_id: Pendulum-v1}\nmodel: {hidden_dims: 256}": "model.hidden_dims must be a list, got 256. Use [256].",
    "data: {env_id: Pendulum-v1}\nmodel: {hidden_dims: [0]}": "hidden_dims",
    "data: {env_id: Pendulum-v1}\nmodel: {actor_lr: {class_path: td3_lightning.Linear, init_args: {start: 1}}}": (
        "requires end, steps, got none."
    ),
    "data: {env_id: Pendulum-v1}\nmodel: {actor_lr: {class_path: td3_lightning.Linear, "
    "init_args: {start: 1, end: 0, steps: 0}}}": "Linear.steps must be at least 1, got 0",
    "data: {env_id: Pendulum-v1}\nmodel: {actor_lr: fast}": (
        "actor_lr must be a number or a class such as td3_lightning.Linear, got fast."
    ),
    "{data: {env_id: Pendulum-v1}, model: {tau: {class_path: torch.nn.Linear, init_args: {bias: 1}}}}": (
        "model.tau must be a number or a schedule, got torch.nn.Linear. Use a number or {class_path: Linear, init_args:"
    ),
    "{data: {env_id: Pendulum-v1}, model: {tau: {start: 1, end: 0, steps: 9}}}": (
        "model.tau must be a number or a schedule, got {'start': 1, 'end': 0, 'steps': 9}. Use a number or {class_path:"
    ),
    "data: {env_id: Pendulum-v1}\nmodel: {tau: {class_path: td3_lightning.Linear, init_args: [1, 0, 9]}}": (
        "init_args of model.tau must be a mapping, got [1, 0, 9]. Use the form {name: value}."
    ),
    "data: {env_id: Pendulum-v1, n_step: many}": (
        "n_step must be an integer or a class such as td3_lightning.Linear, got many."
    ),
    "data: {env_id: Pendulum-v1}\ntrainer: {callbacks: [{class_path: EarlyStoping}]}": (
        "got EarlyStoping; did you mean lightning"
    ),
    "data: {env_id: Pendulum-v1}\ntrainer: {callbacks: [{class_path: lightning.pytorch.callbacks.EarlyStoping}]}": (
        "EarlyStoping"
    ),
    "data: {env_id: Pendulum-v1}\ntrainer: {callbacks: [{class_path: lightning.pytorch.callbacks.EarlyStopping}]}": (
        "requires monitor, got none."
    ),
}


@pytest.mark.parametrize("case", INVALID_LINES)
def test_invalid_command_line_is_one_sentence(case, capsys):
    words, expected = INVALID_LINES[case]
    assert expected in error_of(capsys, *words)


@pytest.mark.parametrize("name", ["data", "model", "trainer", "collector", "checkpoint", "data.wrappers", "model.tau"])
def test_binary_file_is_refused_as_value(name, capsys):
    Path("file").write_bytes(b"\x80")
    expected = f"{name} must be a value or a YAML file, got a file that is not UTF-8. Use another value."
    assert expected in error_of(capsys, "fit", f"--{name}", "./file")


def test_long_word_of_an_error_is_shortened(capsys):
    error = error_of(capsys, "fit", "--data.empty_replay", 5000 * "9")
    assert f"data.empty_replay must be true or false, got {100 * '9'}..." in error
    assert len(error) < 300


WITH_SCHEDULE = "actor_lr, critic_lr, encoder_lr, n_step, exploration_noise, noise_clip, policy_noise, tau"


# Words of other libraries and common errors of form. The message must contain the value and the fix.
COMMON_ERRORS = {
    "car.yaml": "car.yaml does not belong to a flag; did you mean --config car.yaml?",
    "car": "did you mean --config car.yaml?",
    "a.ckpt": "did you mean --ckpt_path a.ckpt?",
    "-data.gamma 0.9": "-data.gamma must begin with two dashes; did you mean --data.gamma?",
    "data.gamma=0.9": "data.gamma=0.9 must begin with two dashes; did you mean --data.gamma?",
    "—data.gamma 0.9": "did you mean --data.gamma?",
    "-- --data.gamma 0.9": '"--" does not belong to a flag',
    "-config here.yaml": "-config must begin with two dashes; did you mean --config?",
    "-conf here.yaml": "-conf must begin with two dashes; did you mean config?",
    "-config=here.yaml": "-config=here.yaml must begin with two dashes; did you mean --config?",
    "-collector.collect 2": "-collector.collect must begin with two dashes; did you mean --collector.collect?",
    "-x 3": "-x must begin with two dashes",
    "--Data.Gamma 0.9": "did you mean data.gamma?",
    "--data-gamma 0.9": "did you mean data.gamma?",
    "--data.n-step 3": "did you mean data.n_step?",
    "--gamma 0.9": "did you mean data.gamma?",
    "--data.batch_size 3 4": '"4" does not belong to a flag',
    "--data.capacity 1e6": "data.capacity must be an integer, got 1000000.0. Use 1000000.",
    "--data.capacity 1M": "got 1M. Use 1000000.",
    "--data.capacity 10,000": "got 10,000. Use 10000.",
    "--data.capacity 1.5": "data.capacity must be an integer, got 1.5.",
    "--data.capacity inf": "data.capacity must be an integer, got inf.",
    "--data.capacity ''": "data.capacity must be an integer, got nothing.",
    "--seed_everything 1e2": "seed_everything must be an integer, got 1e2. Use 100.",
    "--data.gamma 0,9": "data.gamma must be a number or a class such as td3_lightning.Linear, got 0,9. Use a number.",
    "--data.reward_scale 0,9": "data.reward_scale must be a number, got 0,9.",
    "--data.env_kwargs.max_episode_steps 1e2": "max_episode_steps must be an integer, got 100.0. Use 100.",
    "--data.train_kwargs.max_episode_steps abc": "data.train_kwargs.max_episode_steps must be an integer, got abc.",
    "--model.hidden_dims 256,256": "model.hidden_dims must be a list, got 256,256. Use [256,256].",
    "--model.hidden_dims 256 256": "Use [256,256].",
    "--model.hidden_dims=256 256": "Use [256,256].",
    "--model.hidden_dims [256 256]": "Use [256,256].",
    "--model.hidden_dims '(256, 256)'": "got (256, 256). Use [256,256].",
    "--model.hidden_dims 256x256": "Use [256,256].",
    "--model.hidden_dims 64,x": "got 64,x. Use the form [1,2].",
    "--model.hidden_dims [8,a]": "model.hidden_dims must be an integer, got a.",
    "--data.wrappers ActionRepeat": "Use [td3_lightning.ActionRepeat].",
    "--data.wrappers+=ActionRepeat --data.wrappers.repeat=x": "data.wrappers.repeat must be an integer, got x.",
    "--data.n_step Liner": "got Liner. Did you mean td3_lightning.Linear?",
    "--data.n_step td3_lightning.Liner": "did you mean td3_lightning.Linear?",
    "--data.n_step td3_lightnin.Linear": "did you mean td3_lightning.Linear?",
    "--model.encoder td3_lightning.Trunkk": "did you mean td3_lightning.Trunk?",
    "--model.encoder Trunkk": "model.encoder must be a class, got Trunkk; did you mean td3_lightning.Trunk?",
    "--trainer.callbacks+=EarlyStoping": "did you mean lightning.pytorch.callbacks.EarlyStopping?",
    "--trainer.logger WandLogger": "did you mean lightning.pytorch.loggers.WandbLogger?",
    "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitr=a": "did you mean monitor?",
    "--trainer.callbacks+=LambdaCallback --trainer.callbacks.on_fit_start=3": "on_fit_start has a value that lightning",
    "--data.wrappers '[{ActionRepeat: {repeat: 2}}]'": "Use the form {class_path: NAME, init_args: {}}.",
    "--data.wrappers '[{class_path: ActionRepeat, init_args: [2]}]'": "data.wrappers must be a mapping, got [2].",
    "--model.encoder '{class_path: Trunk, init_args: 7}'": "init_args of model.encoder must be a mapping, got 7.",
    "--model.tau '{class_path: Linear, init_args: [1, 0]}'": "init_args of model.tau must be a mapping, got [1, 0].",
    "--model.tau 'Linear(1, 0, 10)'": "got Linear(1, 0, 10). Use {class_path: Linear, init_args: {start: A, end: B, ",
    "--model.encoder 'Trunk([1, 2])'": "got Trunk([1, 2]); did you mean td3_lightning.Trunk?",
    "--data.batch_size null": "data.batch_size must be an integer, got null. Use an integer.",
    "--data.batch_size hello": "data.batch_size must be an integer, got hello. Use an integer.",
    "--data.dataset.share nan": "data.dataset.share must be a number or null, got nan. Use a number.",
    "--data.env_kwargs 3": "data.env_kwargs must be a mapping or null, got 3. Use the form {name: value}.",
    "--data.empty_replay 3": "data.empty_replay must be true or false, got 3. Use true or false.",
    "--model.critic_loss l1": "model.critic_loss must be one of mse, huber, got l1. Use mse, for example.",
    "--trainer.precision 17": "16-mixed, bf16-true, bf16-mixed, 32-true, 64-true, bf16 or null, got 17. Use 64,",
    "--data.wrappers.help Nothin": "data.wrappers.help must be a class, got Nothin; use its import path, for example",
    "--model.tau fast": "number or a class such as td3_lightning.Linear, got fast. Use a number.",
    **{
        f"--{setting} {schedule}": f"{setting} must be {kind}, got Linear. Use {kind}; only {WITH_SCHEDULE}, "
        for setting, kind in (
            ("data.reward_scale", "a number"),
            ("model.num_critics", "an integer"),
        )
        for schedule in ("Linear", "'{class_path: Linear, init_args: {start: 1, end: 0, steps: 9}}'")
    },
    "--model 3": "model must be a mapping, got 3.",
    "--learning_rate 3e-4": "use --model.actor_lr and --model.critic_lr.",
    "--lr 3e-4": "use --model.actor_lr and --model.critic_lr.",
    "--model.learning_rate 3e-4": "use --model.actor_lr and --model.critic_lr.",
    "--buffer_size 1000": "use --data.capacity.",
    "--learning_starts 100": "use --collector.warmup_steps.",
    "--total_timesteps 1e6": "use --trainer.max_epochs (an epoch has --data.steps_per_epoch environment steps).",
    "--net_arch [256,256]": "use --model.hidden_dims",
    "--hidden_sizes [256,256]": "use --model.hidden_dims",
    "--policy_delay 2": "use --model.policy_freq.",
    "--train_freq 1": "use --collector.collect and --data.updates_per_step.",
    "--gradient_steps 1": "use --data.updates_per_step.",
    "--device cuda": "use --trainer.accelerator.",
    "--seed 3": "use --seed_everything.",
}


@pytest.mark.parametrize("typed", COMMON_ERRORS)
def test_common_error_suggests_the_right_form(typed, capsys):
    assert COMMON_ERRORS[typed] in error_of(capsys, *FIT, *shlex.split(typed))


def test_every_suggested_setting_exists(capsys):
    stop("fit", "--print_config")
    printed = yaml.safe_load(capsys.readouterr().out)
    for ours in suggestions.FOREIGN.values():
        for flag in re.findall(r"--([\w.]+)", ours):
            section, _, name = flag.removesuffix(".max_episode_steps").partition(".")
            assert section in printed, flag
            assert not name or name in printed[section], flag


def test_every_suggested_class_can_be_imported():
    for key in suggestions.CLASSES:
        assert suggestions.known_classes(key)
    for path in (path for key in ("n_step", "critic_encoder", "pixels") for path in suggestions.known_classes(key)):
        assert pydoc.locate(path) is not None, path
    assert pydoc.locate("td3_lightning.ActionRepeat")
    assert pydoc.locate("td3_lightning.Pedals")


@pytest.mark.parametrize(
    "message",
    ['Parser key "data.a":\n  Expected a thing', "Parser key \"a\": Expected a <class 'int'>", "Strange.\nLines.", ""],
)
def test_unknown_parser_message_has_no_empty_parts(message):
    output = explain_parser_error(message, ["data.a"])
    assert "\n" not in output
    for empty in ("is ,", "got .", "but  is", "got ,", "  ", "must be ,"):
        assert empty not in output


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


def test_pipe_is_not_read_as_a_checkpoint(capsys):
    os.mkfifo("pipe.ckpt")  # reading would wait for a writer
    assert "pipe.ckpt is not a file. Use " in error_of(capsys, "test", "--ckpt_path", "pipe.ckpt")


@pytest.mark.parametrize(
    ("content", "expected"), [(b"", "empty"), (b"nonsense", "not a checkpoint"), (bytes(9999), "zeros")]
)
def test_invalid_checkpoint_is_one_sentence(content, expected, capsys):
    Path("broken.ckpt").write_bytes(content)
    assert expected in error_of(capsys, "test", "--config", "here.yaml", "--ckpt_path", "broken.ckpt")


def test_truncated_checkpoint_is_one_sentence(last, capsys):
    Path("short.ckpt").write_bytes(last.read_bytes()[:-999])
    assert "short.ckpt is truncated or damaged" in error_of(capsys, "test", "--ckpt_path", "short.ckpt")


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
    assert cli.main([]) == 130
    monkeypatch.setattr(cli, "CommandLine", lambda _: sys.exit(3))
    with pytest.raises(SystemExit) as ended:
        cli.main([])
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

"""Test the command line: accepted words, error messages and the precedence of settings."""

import os
import pty
import select
import shlex
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

import recorded
from nodes import LIMIT
from processes import wait_for
from td3_lightning import ReplayData
from td3_lightning.__main__ import script
from td3_lightning.cli import app as cli
from td3_lightning.cli import config_files
from td3_lightning.cli.app import main
from td3_lightning.cli.precedence import has_name
from td3_lightning.errors import ExitOnSignal
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


def test_fit_prints_a_description_of_the_run(capsys):
    run("fit", "--config", "here.yaml", *SMALL)
    output = capsys.readouterr()
    assert "Pendulum-v1: observations of 3 numbers, actions of 1" in output.out
    assert "lightning_logs/here/version_0" in output.out
    assert "1,000,000 rows of 28 bytes: 28.0 MB when full" in output.out
    for message in ("litlogger", "GPU available", "FLOPs", "LeafSpec"):
        assert message not in output.out + output.err


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


@pytest.mark.parametrize(
    "flags", [["--trainer.logger=false", "--trainer.enable_checkpointing=false"], ["--trainer.fast_dev_run=true"]]
)
def test_disabled_logger_and_checkpoints_write_no_file(flags):
    run("fit", "--config", "here.yaml", *SMALL, *flags)
    assert [path.name for path in Path().iterdir()] == ["here.yaml"]


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
    Path("stage.yaml").write_text(f"{text}ckpt_path: {last}\n")
    assert "test requires --ckpt_path, for example" in error_of(capsys, "test", "--config", "stage.yaml")
    stop("fit", "--config", "stage.yaml", "--print_config")
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["model"]["policy_noise"], printed["model"]["tau"]) == (0.3, 0.01)  # file, and checkpoint
    assert (printed["data"]["empty_replay"], printed["ckpt_path"]) == (True, str(last))
    run("fit", "--config", "stage.yaml", *SMALL, "--trainer.max_epochs=2")
    assert "stage overrides settings of the checkpoint: model.policy_noise 0.3 (not 0.2)." in capsys.readouterr().out
    own = Path("lightning_logs/stage/version_0/checkpoints/last.ckpt")
    assert torch.load(own, weights_only=True)["clocks"]["env_steps"] == 14 + 10 + 4
    for epochs, path in (3, "last"), (4, own.parent / ".." / "checkpoints" / "last.ckpt"):
        run("fit", "--config", "stage.yaml", *SMALL, f"--trainer.max_epochs={epochs}", f"--ckpt_path={path}")
        assert "overrides" not in capsys.readouterr().out
    assert torch.load(own, weights_only=True)["clocks"]["env_steps"] == 14 + 10 + 4 + 4 + 4
    line = ["fit", "--config", "stage.yaml", *SMALL, f"--ckpt_path={own}"]
    assert main([*line, "--trainer.max_epochs=2"]) == 2
    assert "You restored a checkpoint with current_epoch=" in capsys.readouterr().err
    run(*line, "--trainer.max_epochs=4")
    assert "The run was complete after" in capsys.readouterr().out


def test_later_file_switches_off_the_stage_and_the_checkpoint(last, capsys):
    Path("stage.yaml").write_text(PENDULUM.replace("}", ", empty_replay: true}") + f"ckpt_path: {last}\n")
    Path("later.yaml").write_text("data: {empty_replay: false}\n")
    Path("new.yaml").write_text("ckpt_path: null\n")
    for file, expected in ("later.yaml", (False, str(last))), ("new.yaml", (True, None)):
        stop("fit", "--config", "stage.yaml", "--config", file, "--print_config")
        printed = yaml.safe_load(capsys.readouterr().out)
        assert (printed["data"]["empty_replay"], printed["ckpt_path"]) == expected


def test_stage_starts_from_the_newest_run_of_a_name(last, capsys):
    Path("stage.yaml").write_text(PENDULUM.replace("}", ", empty_replay: true}") + "ckpt_path: last:first\n")
    stage = ["fit", "--config", "stage.yaml", *SMALL, "--trainer.max_epochs=2"]
    assert "got none in lightning_logs/first." in error_of(capsys, *stage)
    stop(*stage, "--print_config")  # the previous stage does not exist yet
    assert "ckpt_path: last:first" in capsys.readouterr().out
    for _ in range(2):
        run(*FIT, *SMALL, "--name=first")
    run(*stage)
    assert "Starting this stage from lightning_logs/first/version_1/checkpoints/last.ckpt." in capsys.readouterr().out
    line = ["fit", "--config", "stage.yaml", *SMALL, "--trainer.max_epochs=2", f"--ckpt_path={last}"]
    assert main(line) == 2
    assert f"so ckpt_path must belong to a run named stage, got {last}. Use" in capsys.readouterr().err
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
    assert "The new stage overrides settings of the checkpoint: model.actor_lr" in output
    assert "model.policy_noise 0.3 (not 0.2)" in output
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
    short = ["--episodes=1", "--env_kwargs.max_episode_steps=20", "--trainer.enable_progress_bar=false"]
    run("record", "--ckpt_path", last, "--folder", "films", *short)
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


def test_signal_before_the_run_begins_leaves_no_folder(monkeypatch):
    def stop(*_):
        raise ExitOnSignal(143)

    monkeypatch.setattr(ReplayData, "setup", stop)
    with pytest.raises(ExitOnSignal):
        main([*FIT, *SMALL])
    assert not Path("lightning_logs").exists()


def test_script_imports_from_the_working_directory(monkeypatch):
    Path("mine.py").write_text("from lightning.pytorch.callbacks import Callback\n\nclass Mine(Callback):\n    pass\n")
    words = ["fit", "--config", "here.yaml", *SMALL, "--trainer.callbacks=mine.Mine"]
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(Path.cwd()))])
    monkeypatch.setattr(sys, "argv", ["td3-lightning", *words])
    assert main(words) == 2
    assert script() == 0


def test_fit_continues_after_stdout_is_closed(folder, monkeypatch, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        run(*FIT, *[word for word in SMALL if "progress_bar" not in word], "--trainer.max_epochs=3")
    assert "Error" not in capfd.readouterr().err
    assert torch.load("lightning_logs/here/version_0/checkpoints/last.ckpt")["clocks"]["updates"] == 12


# Errors.


INVALID_LINES = {  # beside those of the FAQ
    "": "td3-lightning requires a command, got none. Use one of fit, ",
    "fit --config": "argument -c/--config: expected one argument",
    # The other lines follow "fit --config here.yaml".
    **{
        f"fit --config here.yaml {words}": message
        for words, message in {
            "--gamma 0.9": "did you mean data.gamma?",
            "stray": '"stray" does not belong to a flag',
            "--data.capacity 1e6": "data.capacity must be an integer, got 1000000.0. Use an integer.",
            "--data.env_kwargs 3": "data.env_kwargs must be a mapping or null, got 3.",
            "--seed_everything -1": "-1 does not conform to restriction v>=0 and v<4294967296",
            "--model.obs_dim 3": "model.obs_dim is taken from the environment",
            "--model.hidden_dims 256,256": "model.hidden_dims must be a list, got 256,256.",
            "--model.critic_loss l1": "model.critic_loss must be one of mse, huber, got l1.",
            "--model.encoder Trunkk": "model.encoder does not accept Trunkk; did you mean td3_lightning.Trunk?",
            "--trainer.max_steps 1000": "must be -1, got 1000. Use --trainer.max_epochs: an epoch has",
            "--trainer.gradient_clip_val=1.0": "must be None, got 1.0. Use --model.max_grad_norm",
            "--trainer.default_root_dir here.yaml": "no write permission for",
            "--trainer.callbacks+=td3_lightning.Collector": "Found more than one stateful callback of type `Collector",
            "--trainer.callbacks+=td3_lightning.StopWhenSolve": "did you mean td3_lightning.StopWhenSolved?",
            "--trainer.callbacks+=td3_lightning.PolicyCheckpoint --trainer.callbacks.early_episodes=0": (
                "early_episodes must be at least 1, got 0. Use a larger value."
            ),
        }.items()
    },
}
INVALID_FILES = {
    "data: [1, {": "bad.yaml must be valid YAML, got an error: while parsing a flow ",
    "": "bad.yaml must be a mapping with sections such as data and trainer, got None. Add them.",
    "data: {env_id: Pendulum-v1}\ntrainer: {max_epoch: 3}": "did you mean trainer.max_epochs",
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: td3_lightning.Nope}]}": "does not accept td3_lightning.Nope",
    "data: {env_id: Pendulum-v1, wrappers: [{class_path: absent.Other}]}": "Python cannot find absent. Add its folder",
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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["test", "--model.hidden_dims", "[16]"], "The checkpoint must fit the networks, got an error: "),
        (["record", "--model.num_critics", "3"], "Remove the settings of model, or use the environment of the"),
        ([*FIT, "--model.normalize_observations", "true"], "The checkpoint must fit the networks"),
        (["test", "--data.env_id", "MountainCarContinuous-v0"], "action_low must be [-2.0], as in the checkpoint"),
        (["fit"], "fit requires --config to resume from"),
        (["record", "--episodes", "0"], "episodes must be in [1, 1000000], got 0"),
        ([*FIT, "--data.num_envs", "2"], "num_envs"),
        ([*FIT, "--data.capacity", "99"], "capacity must be 1000000, as in the saved replay"),
    ],
)
def test_mismatched_checkpoint_is_one_sentence(words, expected, last, capsys):
    assert expected in error_of(capsys, *words, "--ckpt_path", last)


# The program.


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

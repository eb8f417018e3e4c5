"""Metrics that checkpoints and EarlyStopping require: an unknown one is refused before training if possible."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from lightning.pytorch.callbacks import Callback

from td3_lightning.checkpointing.monitors import KNOWN
from tests.cli.test_app import FIT, SMALL, error_of, folder, run  # noqa: F401  # the fixture


class Reporting(gym.Env):
    """Report two numbers at the end of an episode of three steps; one has nearly the name of the mean return."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, False, self.steps == 3, {"laps": 2, "return_meam": 1.0}


class Symbols(Reporting):
    """Report numbers whose names contain other signs than letters."""

    def step(self, action):
        *step, _ = super().step(action)
        return *step, {"cost (USD)": 3.0, "success@1": 1.0, "reward:ctrl": 0.5, "x" * 250: 1.0}


class LogsAnything(Callback):
    """Log a metric under any name."""

    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log("mine", 1.0)


gym.register("Reporting-v0", Reporting)
gym.register("Symbols-v0", Symbols)
WORDS = [*FIT, *SMALL, "--data.env_id=Reporting-v0"]


def checkpoints():
    return {path.name for path in Path("lightning_logs").rglob("*.ckpt")}


@pytest.mark.parametrize(
    ("words", "setting", "name", "close"),
    [
        (["--checkpoint.monitor=eval/retrun_mean"], "checkpoint.monitor", "eval/retrun_mean", "eval/return_mean"),
        (["--checkpoint.monitor=length_mean"], "checkpoint.monitor", "length_mean", "eval/length_mean"),
        (["--checkpoint.monitor=laps"], "checkpoint.monitor", "laps", "eval/NAME"),
        (["--checkpoint.monitor="], "checkpoint.monitor", "", "eval/NAME"),
        (["--checkpoint.filename={eval/retrun_max:.1f}"], "checkpoint.filename", "eval/retrun_max", "eval/return_max"),
        (
            ["--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=eval/retrun_std"],
            *("trainer.callbacks.monitor", "eval/retrun_std", "eval/return_std"),
        ),
    ],
)
def test_unknown_metric_is_refused_before_training(words, setting, name, close, folder, capsys):  # noqa: F811
    said = error_of(capsys, *WORDS, *words)
    assert said.startswith(f"{setting} must name a metric, such as eval/return_mean, ")
    assert f"got '{name}'. Use " in said
    assert close in said.split("Use ")[1]
    assert len(said) < 320


@pytest.mark.parametrize("monitor", ["eval/laps", "eval/return_meam"])
def test_number_in_info_can_be_monitored(monitor, folder):  # noqa: F811
    run(*WORDS, f"--checkpoint.monitor={monitor}", "--checkpoint.filename={eval/laps:.0f}_laps")
    assert checkpoints() == {"2_laps.ckpt", "last.ckpt"}


def test_run_goes_on_if_an_evaluation_does_not_report_the_metric(folder):  # noqa: F811
    with pytest.warns(UserWarning, match=r"^checkpoint\.monitor eval/lap_time has no value after this evaluation"):
        run(*WORDS, "--checkpoint.monitor=eval/lap_time")
    assert checkpoints() == {"last.ckpt"}


def test_run_without_evaluations_needs_no_metric(folder):  # noqa: F811
    run(*WORDS, "--checkpoint.monitor=eval/lap_time", "--trainer.limit_val_batches=0")
    assert checkpoints() == {"last.ckpt"}


@pytest.mark.parametrize(
    "words",
    [
        ["--checkpoint.monitor=eval/cost (USD)", "--checkpoint.filename=({eval/cost (USD):.1f} USD)"],
        ["--checkpoint.monitor=eval/success@1", "--checkpoint.filename={eval/success@1:.2f}@1"],
        ["--checkpoint.monitor=eval/reward:ctrl"],
        ["--trainer.val_check_interval={minutes: 30}"],
        ["--trainer.val_check_interval=00:00:30:00"],
    ],
    ids=len,
)
def test_run_with_an_accepted_setting_resumes(words, folder):  # noqa: F811
    fit = [*FIT, *SMALL, "--data.env_id=Symbols-v0"]
    run(*fit, *words)
    run(*fit, "--trainer.max_epochs=2", "--ckpt_path=last")
    assert Path("lightning_logs/here/version_0/checkpoints/last-1.ckpt").exists()


@pytest.mark.parametrize(
    ("word", "constraint"),
    [
        ("--checkpoint.filename=.hidden", "checkpoint.filename names '.hidden'"),
        ("--checkpoint.filename=", "checkpoint.filename names ''"),
    ],
    ids=len,
)
def test_setting_that_would_prevent_a_resume_is_refused(word, constraint, folder, capsys):  # noqa: F811
    said = error_of(capsys, *FIT, *SMALL, "--data.env_id=Symbols-v0", word)
    assert said.startswith(constraint)
    assert said.endswith(". Use a value that a checkpoint can hold.\n")


def test_metric_of_a_users_callback_can_be_monitored(folder):  # noqa: F811
    run(*WORDS, f"--trainer.callbacks={__name__}.LogsAnything", "--checkpoint.monitor=mine", "--checkpoint.filename=x")
    assert checkpoints() == {"x.ckpt", "last.ckpt"}


def test_run_has_every_metric_that_is_known(folder):  # noqa: F811
    run(*WORDS, "--checkpoint.filename=" + "_".join(f"{{{name}}}" for name in KNOWN))
    best = next(name for name in checkpoints() if name != "last.ckpt")
    returns = "3.0_0.0_3.0_3.0_3.0"
    assert best.removesuffix(".ckpt").startswith(f"{returns}_14_4_")

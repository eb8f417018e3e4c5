"""Loggers of the user beside the run's own: the run's folder and the user's files stay as they are."""

import csv
from pathlib import Path

import pytest
import yaml
from lightning.pytorch.loggers.logger import Logger

from td3_lightning.cli.app import main
from tests.cli.test_app import PENDULUM, SMALL, error_of, folder, run  # noqa: F401  # the fixture

RUN = Path("lightning_logs", "here", "version_0")
OURS = {"config.yaml", "metrics.csv", "curve.png", "hparams.yaml", "evaluations.npz", "checkpoints/last.ckpt"}


class Remote(Logger):
    """A logger that logs elsewhere, as W&B's and MLflow's do."""

    made: list["Remote"] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.lines = []
        self.made.append(self)

    @property
    def name(self):
        return "remote"

    @property
    def version(self):
        return "a1b2c3"

    @property
    def save_dir(self):
        return None

    def log_metrics(self, metrics, step=None):
        self.lines.append(metrics)

    def log_hyperparams(self, params, *args, **kwargs):
        self.hyperparams = params


SETTINGS = {
    "remote": "{class_path: tests.integration.test_loggers.Remote}",
    "csv": "{class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir: .}}",
}


def files(where):
    return {path.relative_to(where).as_posix() for path in where.rglob("*") if path.is_file()}


def fit(*words):
    run("fit", "--config", "config.yaml", *SMALL, "--trainer.callbacks=SaveEvaluations", "--name=here", *words)


@pytest.mark.parametrize("kind", SETTINGS)
def test_run_keeps_its_folder_beside_a_logger_of_the_user(kind, folder, capsys):  # noqa: F811
    Remote.made.clear()
    mine = f"# mine\n{PENDULUM}"
    for name in ("config.yaml", "metrics.csv", "curve.png", "hparams.yaml", "evaluations.npz"):
        folder.joinpath(name).write_text(mine)
    words = [f"--trainer.logger={SETTINGS[kind]}"]
    fit(*words)
    assert files(RUN) >= OURS
    said = capsys.readouterr().out
    assert f"logs         {RUN}" in said
    fit(*words, "--trainer.max_epochs=2", "--ckpt_path=last")
    assert [path.name for path in RUN.parent.iterdir()] == ["version_0"]
    with RUN.joinpath("metrics.csv").open(newline="") as file:
        assert len([row for row in csv.DictReader(file) if row["eval/return_mean"]]) == 2
    for name in ("config.yaml", "metrics.csv", "curve.png", "hparams.yaml", "evaluations.npz"):
        assert folder.joinpath(name).read_text() == mine
    assert yaml.safe_load(RUN.joinpath("config.yaml").read_text())["trainer"]["max_epochs"] == 2
    logged = [line for each in Remote.made for line in each.lines if "eval/return_mean" in line]
    assert len(logged) == (2 if kind == "remote" else 0)
    if kind == "csv":
        assert (folder / "lightning_logs" / "version_0" / "metrics.csv").is_file()
        assert "CSVLogger" in said


def test_logger_false_keeps_checkpoints_only(folder, capsys):  # noqa: F811
    fit_words = ["--config", "here.yaml", *SMALL, "--trainer.logger=false"]
    run("fit", *fit_words)
    assert "logs         none" in capsys.readouterr().out
    assert {Path(name).parts[0] for name in files(folder)} == {"here.yaml", "checkpoints"}


def test_users_config_in_the_run_folder_is_not_overwritten(folder, capsys):  # noqa: F811
    folder.joinpath("config.yaml").write_text(PENDULUM)
    words = "{class_path: td3_lightning.reporting.logger.RunLogger, init_args: {save_dir: ., name: '', version: ''}}"
    said = error_of(capsys, "fit", "--config", "config.yaml", *SMALL, f"--trainer.logger={words}")
    assert said.startswith("The run folder must be empty, got ")
    assert folder.joinpath("config.yaml").read_text() == PENDULUM


def test_logger_in_the_runs_folder_is_refused(folder, capsys):  # noqa: F811
    words = SETTINGS["csv"].replace("save_dir: .", "save_dir: lightning_logs, name: here, version: 0")
    assert main(["fit", "--config", "here.yaml", *SMALL, f"--trainer.logger={words}"]) == 2
    said = capsys.readouterr().err
    assert "trainer.logger must write outside the run's folder, got " in said
    assert not any(each.suffix in (".ckpt", ".csv", ".yaml") for each in folder.joinpath("lightning_logs").rglob("*"))

"""Loggers of the user beside the run's own: the run's folder and the user's files stay as they are."""

import csv
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch.loggers.logger import Logger

from td3_lightning.reporting.learning_curve import write_curve
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.metrics_csv import column_of
from tests.cli.test_app import PENDULUM, SMALL, error_of, folder, run  # noqa: F401  # the fixture

RUN = Path("lightning_logs", "here", "version_0")
OURS = {"config.yaml", "metrics.csv", "curve.png", "hparams.yaml", "evaluations.npz", "checkpoints/last.ckpt"}


class Remote(Logger):
    """A logger that logs elsewhere, as W&B's and MLflow's do."""

    made: list["Remote"] = []  # noqa: RUF012
    folder: str | None = "."

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
        return self.folder

    def log_metrics(self, metrics, step=None):
        self.lines.append(metrics)

    def log_hyperparams(self, params, *args, **kwargs):
        self.hyperparams = params


class Nowhere(Remote):
    """One without a folder."""

    folder = None


FOREIGN = {
    "csv": "lightning.pytorch.loggers.CSVLogger",
    "tensorboard": "lightning.pytorch.loggers.TensorBoardLogger",
    "remote": "tests.integration.test_loggers.Remote",
    "nowhere": "tests.integration.test_loggers.Nowhere",
}
SETTINGS = {
    **{name: f"{{class_path: {path}}}" for name, path in FOREIGN.items() if "test_loggers" in path},
    **{
        name: f"{{class_path: {path}, init_args: {{save_dir: .}}}}"
        for name, path in FOREIGN.items()
        if "test_loggers" not in path
    },
}
SETTINGS["list"] = f"[{SETTINGS['remote']}, {SETTINGS['csv']}]"
SETTINGS["list of one"] = f"[{SETTINGS['nowhere']}]"


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
    assert len(logged) == (2 if kind in ("remote", "nowhere", "list", "list of one") else 0)
    if kind in ("csv", "list"):
        assert (folder / "lightning_logs" / "version_0" / "metrics.csv").is_file()
        assert "CSVLogger" in said


def test_evaluation_commands_use_the_loggers_of_the_user(folder):  # noqa: F811
    run("fit", "--config", "here.yaml", *SMALL)
    before = files(folder)
    Remote.made.clear()
    words = ["--config", "here.yaml", f"--ckpt_path={RUN}/checkpoints/last.ckpt"]
    run("test", *words, "--trainer.logger={class_path: tests.integration.test_loggers.Nowhere}")
    (logger,) = Remote.made
    assert any("test/return_mean" in line for line in logger.lines)
    assert files(folder) == before


@pytest.mark.parametrize("value", ["false", "[]"])
def test_logger_false_keeps_checkpoints_only(value, folder, capsys):  # noqa: F811
    fit_words = ["--config", "here.yaml", *SMALL, f"--trainer.logger={value}"]
    run("fit", *fit_words)
    assert "logs         none" in capsys.readouterr().out
    assert {Path(name).parts[0] for name in files(folder)} == {"here.yaml", "checkpoints"}


def test_logger_true_is_the_runs_own(folder):  # noqa: F811
    run("fit", "--config", "here.yaml", *SMALL, "--trainer.logger=true")
    assert files(RUN) >= OURS - {"evaluations.npz"}


def test_a_run_logger_of_the_user_is_the_only_one(folder):  # noqa: F811
    words = "{class_path: td3_lightning.reporting.logger.RunLogger, init_args: {save_dir: mine, name: a}}"
    run("fit", "--config", "here.yaml", *SMALL, f"--trainer.logger=[{SETTINGS['csv']}, {words}]")
    assert files(folder / "mine" / "a" / "version_0") >= OURS - {"evaluations.npz"}
    assert not RUN.parent.exists()


def test_users_config_in_the_run_folder_is_not_overwritten(folder, capsys):  # noqa: F811
    folder.joinpath("config.yaml").write_text(PENDULUM)
    words = "{class_path: td3_lightning.reporting.logger.RunLogger, init_args: {save_dir: ., name: '', version: ''}}"
    said = error_of(capsys, "fit", "--config", "config.yaml", *SMALL, f"--trainer.logger={words}")
    assert "The run's folder must contain no config.yaml, got " in said
    assert "Use another folder for the logger, or --name." in said
    assert folder.joinpath("config.yaml").read_text() == PENDULUM


@pytest.mark.parametrize("kind", ["csv", "tensorboard"])
def test_logger_in_the_runs_folder_is_refused(kind, folder, capsys):  # noqa: F811
    words = f"{{class_path: {FOREIGN[kind]}, init_args: {{save_dir: lightning_logs, name: here, version: 0}}}}"
    capsys.readouterr()
    from td3_lightning.cli.app import main

    assert main(["fit", "--config", "here.yaml", *SMALL, f"--trainer.logger={words}"]) == 2
    said = capsys.readouterr().err
    assert "trainer.logger must write outside the run's folder, got " in said
    assert "Use another save_dir or name for it." in said
    assert not any(each.suffix in (".ckpt", ".csv", ".yaml") for each in folder.joinpath("lightning_logs").rglob("*"))


# Many names and large numbers.


@pytest.mark.parametrize(
    ("name", "column"), [("a\nb", "a b"), ("a\r\n\tb", "a b"), ("\udcff", "?"), ("é", "é"), ("a,b", "a,b"), (3, "3")]
)
def test_name_is_one_line_of_text(name, column, tmp_path):
    assert column_of(name) == column
    logger = RunLogger(str(tmp_path), "a", 0)
    for step in range(3):
        logger.log_metrics({name: 1.0}, step)
    logger.log_metrics({"wider": 1.0}, 3)
    logger.finalize("success")
    rows = list(csv.DictReader(logger.metrics.path.open(newline="", encoding="utf-8")))
    assert [row[column] for row in rows] == ["1", "1", "1", ""]
    assert logger.metrics.rows == 4


@pytest.mark.parametrize(
    ("value", "number"),
    [(10**400, float("inf")), (-(10**400), -float("inf")), (3, 3.0), (torch.tensor(2.5), 2.5)],
    ids="abcd",
)
def test_number_beyond_float_is_infinite(value, number, tmp_path):
    logger = RunLogger(str(tmp_path), "a", 0)
    logger.log_metrics({"x": value}, 1)
    logger.finalize("success")
    assert float(next(csv.DictReader(logger.metrics.path.open(newline="")))["x"]) == number


def test_curve_of_a_run_whose_name_is_no_formula(tmp_path):
    logger = RunLogger(str(tmp_path), r"a$\frac$b_{", 0)
    logger.log_metrics({"eval/return_mean": 1.0, "eval/return_min": 1.0, "eval/return_max": 1.0}, 1)
    logger.finalize("success")
    assert write_curve(logger.metrics.path).is_file()

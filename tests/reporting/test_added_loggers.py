"""Check the loggers that a user adds to that of the run, with stand-ins for W&B and MLflow."""

import csv
from pathlib import Path

import pytest
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import rank_zero_experiment

from td3_lightning.cli.error_messages import user_message
from tests.cli.test_app import SMALL, error_of, folder, run  # noqa: F401  # the fixture

HERE = "tests.reporting.test_added_loggers"
FIT = ["fit", "--config", "here.yaml", *SMALL]
RUN = Path("lightning_logs", "here", "version_0")


class Service(Logger):
    """A service as W&B: the first access to `experiment` starts or continues the run with an id."""

    runs: dict[str, list[tuple[int, dict[str, float]]]] = {}  # noqa: RUF012  # the service keeps them
    hyperparams: dict[str, object] = {}  # noqa: RUF012
    name, version = "service", None

    def __init__(self, id: str = "new", save_dir: str = ".") -> None:
        super().__init__()
        self.id, self._save_dir, self._experiment = id, save_dir, None

    @property
    def save_dir(self) -> str:
        return self._save_dir

    @property
    @rank_zero_experiment
    def experiment(self):
        if self._experiment is None:
            self._experiment = self.runs.setdefault(self.id, [])
        return self._experiment

    def log_hyperparams(self, params, *args, **kwargs):
        self.hyperparams.update(params)

    def log_metrics(self, metrics, step=None):
        self.experiment.append((step, dict(metrics)))


class Offline(Service):
    """A service that cannot be reached after the start."""

    def log_metrics(self, metrics, step=None):
        raise ConnectionError("no route to host")

    def finalize(self, status):
        raise ConnectionError("no route to host")


class LoggedOut(Service):
    """A service that requires a key."""

    @property
    def experiment(self):
        raise RuntimeError("No API key configured. Use `login` to log in.")


def rows():
    """Return the rows of metrics.csv without the speed."""
    with RUN.joinpath("metrics.csv").open(newline="") as file:
        return [{name: cell for name, cell in row.items() if "per_second" not in name} for row in csv.DictReader(file)]


def test_service_gets_every_row_and_a_resumed_run_continues_it(folder):  # noqa: F811
    Service.runs.clear()
    run(*FIT, "--trainer.log_every_n_steps=1", f"--trainer.logger={{class_path: {HERE}.Service, init_args: {{id: a}}}}")
    run("fit", "--config", RUN / "config.yaml", "--ckpt_path=last:here", "--trainer.max_epochs=2")
    assert list(Service.runs) == ["a"]
    assert [str(step) for step, _ in Service.runs["a"]] == [row["env_steps"] for row in rows()]
    returns = [str(values["eval/return_mean"]) for _, values in Service.runs["a"] if "eval/return_mean" in values]
    assert returns == [row["eval/return_mean"] for row in rows() if row["eval/return_mean"]]
    assert len(returns) == 2
    assert Service.hyperparams["actor_lr"] == 3e-4


def test_service_that_fails_later_does_not_end_the_run(folder, recwarn):  # noqa: F811
    run(*FIT)
    expected = rows()
    for path in sorted(RUN.parent.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    RUN.parent.rmdir()
    run(*FIT, f"--trainer.logger={HERE}.Offline")
    assert rows() == expected
    assert RUN.joinpath("checkpoints", "last.ckpt").exists()
    assert RUN.joinpath("curve.png").exists()
    (said,) = [str(each.message) for each in recwarn if "Offline" in str(each.message)]
    assert said.startswith("Offline failed: ConnectionError: no route to host (")
    assert said.endswith(". The run continues; metrics.csv has every row.")


def test_service_that_cannot_start_is_refused(folder, capsys):  # noqa: F811
    said = error_of(capsys, *FIT, f"--trainer.logger={HERE}.LoggedOut")
    assert "trainer.logger must be able to start its experiment, got LoggedOut with the error: No API key" in said
    assert [path.name for path in folder.iterdir()] == ["here.yaml"]


@pytest.mark.parametrize("form", ["CometLogger", "[{class_path: lightning.pytorch.loggers.CometLogger}]"])
def test_missing_package_is_named(form, folder, capsys):  # noqa: F811
    said = error_of(capsys, *FIT, f"--trainer.logger={form}")
    assert said.startswith("lightning.pytorch.loggers.CometLogger must have its package installed, got no comet-ml")
    assert ". Use pip install 'comet-ml>=" in said


def test_missing_module_of_a_package_is_named():
    union = "Union subtypes\n  - Not a valid subclass\n  - Problem with given class_path 'a.B':\n      "
    said = user_message(ValueError(f"{union}No module named 'cryptography'"))
    assert said == "a.B must have its package installed, got no cryptography. Use pip install 'cryptography'."
    said = user_message(ValueError(f"{union}The file store. Use\n      sqlite"))
    assert said == "Problem with given class_path 'a.B': The file store. Use sqlite"

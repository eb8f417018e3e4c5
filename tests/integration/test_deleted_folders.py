"""Folders that somebody deletes or changes, through the command line: during a run, and before it is resumed."""

import csv
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import Callback

from segment_rows import check_rows
from td3_lightning.cli.app import main
from tests.cli.test_app import SMALL, folder, run  # noqa: F401  # the fixture

RUN = Path("lightning_logs", "here", "version_0")
LAST = RUN / "checkpoints" / "last.ckpt"
WORDS = ["fit", "--config", "here.yaml", *SMALL]
DELETED = ["lightning_logs", RUN, RUN / "checkpoints", RUN / "checkpoints" / "replay", RUN / "config.yaml"]


class Deletes(Callback):
    """Deletes a file or a folder when the second epoch begins."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            shutil.rmtree(self.path) if self.path.is_dir() else self.path.unlink()


class Blocks(Deletes):
    """Puts a file in the place of a folder when the second epoch begins."""

    def on_train_epoch_start(self, trainer, module):
        super().on_train_epoch_start(trainer, module)
        if trainer.current_epoch == 1:
            self.path.touch()


def fit(*words, epochs):
    run(*WORDS, f"--trainer.max_epochs={epochs}", *words)


def state():
    """The clocks, weights and replay of the last checkpoint."""
    end = torch.load(LAST, weights_only=True)
    replay = end["ReplayData"]["ranks"][0]["replay"]
    check_rows(replay, LAST.parent / "replay")
    return end["clocks"], end["state_dict"], replay["rings"][0]["written"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The state of the same run, from which nothing was deleted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("undisturbed"))
        Path("here.yaml").write_text("data: {env_id: Pendulum-v1}\n")
        fit(epochs=4)
        return state()


@pytest.mark.parametrize("deleted", DELETED, ids=str)
def test_run_resumes_after_a_folder_was_deleted_during_it(deleted, undisturbed, folder):  # noqa: F811
    fit(
        f"--trainer.callbacks={{class_path: {__name__}.Deletes, init_args: {{path: {deleted}}}}}",
        epochs=2,
    )
    assert yaml.safe_load(RUN.joinpath("config.yaml").read_text())["trainer"]["max_epochs"] == 2
    fit("--ckpt_path=last", epochs=4)
    assert [path.name for path in RUN.parent.iterdir()] == ["version_0"]
    clocks, weights, rows = state()
    assert (clocks, rows) == (undisturbed[0], undisturbed[2])
    assert all(torch.equal(weights[name], weight) for name, weight in undisturbed[1].items())
    with RUN.joinpath("metrics.csv").open(newline="") as file:
        steps = [row["env_steps"] for row in csv.DictReader(file) if row["eval/return_mean"]]
    assert steps[-2:] == ["22", "26"]
    assert (RUN / "curve.png").is_file()
    assert len(list(RUN.joinpath("checkpoints").glob("steps_*.ckpt"))) >= 1


def test_run_whose_folder_cannot_be_written_continues(folder):  # noqa: F811
    blocks = f"--trainer.callbacks={{class_path: {__name__}.Blocks, init_args: {{path: {RUN}}}}}"
    with pytest.warns(UserWarning, match=r"config\.yaml") as caught:
        fit(blocks, epochs=3)
    said = "\n".join(str(each.message) for each in caught)
    assert said.count(f"{RUN}/config.yaml (Not a directory). The run continues.") == 1
    assert "last.ckpt could not be saved (Not a directory). The run continues without a checkpoint." in said
    assert RUN.is_file()


def test_config_is_missing_beside_checkpoints_in_another_folder(folder):  # noqa: F811
    blocks = f"--trainer.callbacks={{class_path: {__name__}.Blocks, init_args: {{path: {RUN}}}}}"
    with pytest.warns(UserWarning, match=r"^Cannot write .*config\.yaml \(Not a directory\)\. The run continues\.$"):
        fit(blocks, f"--checkpoint.dirpath={folder}/elsewhere", epochs=3)
    assert torch.load("elsewhere/last.ckpt", weights_only=True)["clocks"]["updates"] == 12


def test_lost_segment_is_one_sentence(folder, capsys):  # noqa: F811
    fit(epochs=1)
    next(LAST.parent.glob("replay/*.rows")).unlink()
    before = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main([*WORDS, "--trainer.max_epochs=3", "--ckpt_path=last"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert ".rows cannot be read" in said
    assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == before
    run("test", f"--ckpt_path={LAST}")  # it uses no replay

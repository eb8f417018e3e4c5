"""Names of checkpoints, made from metrics: checked before a run begins."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from td3_lightning import UsageError
from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.file_names import check_file_name
from tests.cli.test_app import FIT, SMALL, error_of, folder, run  # noqa: F401  # the fixture

WRONG = [
    "run_{eval/return_mean:07d}",
    "run_{env_steps:.0f",
    "run_env_steps}",
    "run_{}",
    "run_{env_steps:.0q}",
]


@pytest.mark.parametrize("template", WRONG)
def test_wrong_template_is_one_sentence(template, folder, capsys):  # noqa: F811
    said = error_of(capsys, *FIT, *SMALL, f"--checkpoint.filename={template}")
    assert (
        f"checkpoint.filename must be a name with metrics in braces, with formats for floats, got {template} (" in said
    )
    assert "Use for example steps_{env_steps:.0f}_return_{eval/return_mean:.2f}." in said
    with pytest.raises(UsageError, match=r"checkpoint\.filename must be"):
        BestCheckpoint(filename=template)


@pytest.mark.parametrize("template", [*WRONG, "run_{env_steps:07d}"])
def test_wrong_template_of_a_users_callback_is_one_sentence(template, folder, capsys):  # noqa: F811
    callback = f"{{class_path: ModelCheckpoint, init_args: {{filename: '{template}', auto_insert_metric_name: false}}}}"
    said = error_of(capsys, *FIT, *SMALL, f"--trainer.callbacks=[{callback}]")
    assert (
        f"trainer.callbacks.filename must be a name with metrics in braces, with formats for floats, got {template}"
        in said
    )


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("run_{env_steps:07d}", "run_0000014"),
        ("{env_steps}_{updates:03d}_{episodes:d}", "14_004_0"),
        ("{env_steps:.0f}_{epoch:02d}", "14_00"),
        ("plain", "plain"),
        ("{eval/length_mean:.0f}", "200"),
    ],
)
def test_name_of_the_best_checkpoint(template, name, folder):  # noqa: F811
    run(*FIT, *SMALL, f"--checkpoint.filename={template}")
    names = {path.name for path in Path("lightning_logs").rglob("*.ckpt")}
    assert names == {f"{name}.ckpt", "last.ckpt"}


def test_templates_that_lightning_takes_are_taken():
    for template in (None, "", "{epoch}-{step}", "{epoch:02d}-{step:d}", "{eval/return_mean:.2f}", "a-{b}"):
        check_file_name("x", ModelCheckpoint(filename=template))
    assert BestCheckpoint().format_checkpoint_name({"env_steps": torch.tensor(2.0**53 - 1, dtype=torch.float64)}) == (
        "steps_9007199254740991_return_nan.ckpt"
    )


def test_only_a_plain_model_checkpoint_saves_the_replay(folder):  # noqa: F811
    plain = "{class_path: ModelCheckpoint, init_args: {filename: plain}}"
    best = (
        "{class_path: td3_lightning.checkpointing.best.BestCheckpoint, init_args: {monitor: episodes, filename: ours}}"
    )
    run(*FIT, *SMALL, f"--trainer.callbacks=[{plain}, {best}]")
    checkpoints = Path("lightning_logs", "here", "version_0", "checkpoints")
    ranks = {
        path.stem: torch.load(path, weights_only=True)["ReplayData"]["ranks"] for path in checkpoints.glob("*.ckpt")
    }
    assert {"plain", "ours", "last"} < set(ranks)
    replays = {name: rank[0]["replay"] for name, rank in ranks.items() if "replay" in rank[0]}
    assert set(replays) == {"plain", "last"}
    stored = {name: sum(len(rows) for _, rows in replay["rings"][0]["rows"]) for name, replay in replays.items()}
    assert stored["plain"] >= 14
    assert stored["last"] <= 2  # the others are in the segments
    run(*FIT, *SMALL, "--trainer.max_epochs=2", f"--ckpt_path={checkpoints / 'plain.ckpt'}")


@pytest.mark.parametrize("template", ["../x", "a/../../x", "/x/y", "{env_steps:.0f}/../../x", "x\0", "x" * 300])
@pytest.mark.parametrize("kind", [ModelCheckpoint, BestCheckpoint])
def test_file_outside_the_checkpoint_folder_is_refused(template, kind):
    with pytest.raises(UsageError, match=r"filename must be a name (inside|of at most 200 bytes)"):
        check_file_name("checkpoint.filename", kind(filename=template))


@pytest.mark.parametrize("template", ["last", "last-1", "a/b"])
def test_name_of_another_checkpoint_is_refused(template, folder, capsys):  # noqa: F811
    said = error_of(capsys, *FIT, *SMALL, f"--checkpoint.filename={template}")
    assert f"checkpoint.filename must be a name without a folder, other than last and last-1, got '{template}'." in said

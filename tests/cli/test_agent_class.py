"""The class of the agent on the command line, in configuration files and in checkpoints."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from td3_lightning import TD3, TD7, UsageError
from td3_lightning.cli.app import main
from td3_lightning.serialization.checkpoint_file import read_checkpoint

LAST = Path("lightning_logs/td7/version_0/checkpoints/last.ckpt")
SETTINGS: dict[str, Any] = {
    "data": {"env_id": "Pendulum-v1", "batch_size": 4, "steps_per_epoch": 12, "eval_episodes": 1, "test_episodes": 1},
    "collector": {"warmup_steps": 10},
    "trainer": {"accelerator": "cpu", "max_epochs": 2, "enable_progress_bar": False},
}
ARGUMENTS = {"hidden_dims": [8, 8], "zs_dim": 6, "target_update_freq": 5}
FORMS: dict[str, Any] = {
    "nested": {"class_path": "td3_lightning.TD7", "init_args": ARGUMENTS},
    "flat": {"class_path": "td3_lightning.TD7", **ARGUMENTS},
    "short": {"class_path": "TD7", **ARGUMENTS},
    "whole path": {"class_path": "td3_lightning.algorithm.td7.TD7", "init_args": ARGUMENTS},
}


def write(name: str, model: Any = None, **sections: Any) -> str:
    content = {**SETTINGS, **({} if model is None else {"model": model}), **sections}
    Path(name).write_text(yaml.safe_dump(content))
    return name


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained TD7."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["fit", "--config", write("td7.yaml", FORMS["nested"])]) == 0
    return folder


@pytest.fixture(autouse=True)
def folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*words, "--print_config"])
    return yaml.safe_load(capsys.readouterr().out)["model"]


def error_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    return error


def test_the_class_and_its_settings_are_saved() -> None:
    for config in (
        yaml.safe_load(LAST.parents[1].joinpath("config.yaml").read_text()),
        read_checkpoint(LAST)["config"],
    ):
        assert config["model"].items() >= {"class_path": "td3_lightning.TD7", **ARGUMENTS}.items()
    assert read_checkpoint(LAST)["algorithm"] == "TD7"
    assert len(read_checkpoint(LAST)["optimizer_states"]) == 3


@pytest.mark.parametrize("form", FORMS)
def test_forms_in_a_file(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(["fit", "--config", write("form.yaml", FORMS[form])], capsys)
    assert found.items() >= {"class_path": "td3_lightning.TD7", **ARGUMENTS}.items()
    assert "layer_norm" not in found


@pytest.mark.parametrize("words", [["--model", "TD7"], ["--model.class_path=TD7"]])
def test_forms_of_the_flag(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(["fit", "--config", write("plain.yaml"), *words, "--model.zs_dim", "9"], capsys)
    assert (found["class_path"], found["zs_dim"]) == ("td3_lightning.TD7", 9)


def test_a_flag_wins_over_files_and_a_later_file_over_an_earlier(capsys: pytest.CaptureFixture[str]) -> None:
    files = ["fit", "--config", write("one.yaml", FORMS["nested"]), "--config", write("two.yaml", {"actor_lr": 0.5})]
    found = printed(files, capsys)
    assert (found["class_path"], found["zs_dim"], found["actor_lr"]) == ("td3_lightning.TD7", 6, 0.5)
    files[-1] = write("two.yaml", "td3_lightning.TD7")
    assert printed(["fit", *files[3:], "--model", "TD3"], capsys)["class_path"] == "td3_lightning.TD3"


ERRORS = {
    "--model TD9": "model.class_path must be td3_lightning.TD3 or td3_lightning.TD7 or a subclass, got TD9. Use TD7",
    "--model.class_path os.system": "or a subclass, got os.system. Use TD7, for example.",
    "--model.layer_norm true": 'There is no setting "model.layer_norm"',
    "--model.zs_dim 0": "zs_dim must be at least 1, got 0. The paper uses 256.",
    f"--ckpt_path {LAST} --model.zs_dim 16": "The checkpoint must fit the networks, got an error: ",
}


@pytest.mark.parametrize("typed", ERRORS)
def test_each_mistake_is_one_sentence(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ERRORS[typed] in error_of(["fit", "--config", "td7.yaml", *typed.split()], capsys)


@pytest.mark.parametrize(
    "command", [["test"], ["record", "--episodes=1"], ["robustness", "--episodes=2", "--observation_noise=[0,0,0]"]]
)
def test_commands_take_the_class_from_the_checkpoint(command: list[str]) -> None:
    assert main([*command, "--ckpt_path", str(LAST), "--data.env_kwargs.max_episode_steps=20"]) == 0


def test_resume_without_naming_the_class_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--ckpt_path", str(LAST), "--trainer.max_epochs=3", "--name=resumed"]
    assert main(["fit", "--config", write("unnamed.yaml"), *words]) == 0
    resumed = read_checkpoint("lightning_logs/resumed/version_0/checkpoints/last.ckpt")
    assert (resumed["algorithm"], resumed["clocks"]["updates"]) == ("TD7", 36)
    assert resumed["config"]["model"]["zs_dim"] == 6


def test_a_checkpoint_of_td3_is_not_a_td7(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", write("td3.yaml", {"hidden_dims": [8]}), "--name=td3"]) == 0
    path = "lightning_logs/td3/version_0/checkpoints/last.ckpt"
    text = f"model.class_path must be td3_lightning.TD3, as in {path}, got td3_lightning.TD7."
    assert text in error_of(["fit", "--config", "td7.yaml", "--ckpt_path", path], capsys)
    with pytest.raises(UsageError, match="must be of TD7, got one of 'TD3'"):
        TD7.load_from_checkpoint(path)


def test_load_from_checkpoint() -> None:
    module = TD7.load_from_checkpoint(LAST)
    assert type(module) is TD7
    assert module.hparams["zs_dim"] == 6
    assert module.value_range.low < module.value_range.high
    for name, value in torch.load(LAST, weights_only=True)["state_dict"].items():
        assert torch.equal(module.state_dict()[name], value), name
    with pytest.raises(UsageError, match="must be of TD3, got one of 'TD7'"):
        TD3.load_from_checkpoint(LAST)


class Custom(TD7):
    """An agent of a user."""


def test_a_users_subclass_trains_resumes_and_loads(capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{__name__}.Custom"
    words = ["fit", "--config", write("own.yaml", {"class_path": name, **ARGUMENTS}), "--trainer.max_epochs=1"]
    assert main(words) == 0
    assert main([*words, "--ckpt_path=last", "--trainer.max_epochs=2"]) == 0
    path = "lightning_logs/own/version_0/checkpoints/last.ckpt"
    assert type(Custom.load_from_checkpoint(path)) is Custom
    assert f'names "{name}"' in error_of(["test", "--ckpt_path", path], capsys)
    assert main(["test", "--ckpt_path", path, "--model", name]) == 0


HOSTILE = {
    "unknown algorithm": (
        ("algorithm",),
        "os.system",
        "must be of one of td3_lightning.TD3, td3_lightning.TD7, got 'os.system'",
    ),
    "no text": (("algorithm",), ["TD7"], "must be of one of td3_lightning.TD3, td3_lightning.TD7, got ['TD7']"),
    "another class": (("config", "model", "class_path"), "evil.Agent", 'names "evil.Agent"'),
    "not a class": (("config", "model", "class_path"), 3, "model.class_path must be"),
    "classes differ": (("algorithm",), "TD3", "zs_dim"),
    "huge embedding": (("config", "model", "zs_dim"), 10_000, "too few for layers [8, 10000]"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_checkpoint_cannot_choose_what_is_imported(
    case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("class Agent: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    (*keys, last), value, text = HOSTILE[case]
    checkpoint = torch.load(LAST, weights_only=True)
    part = checkpoint
    for key in keys:
        part = part[key]
    part[last] = value
    torch.save(checkpoint, "hostile.ckpt")
    assert text in error_of(["test", "--ckpt_path=hostile.ckpt"], capsys)
    assert "evil" not in sys.modules

"""Test the help."""

import pytest

from td3_lightning.cli.app import main
from td3_lightning.cli.commands import COMMANDS, OTHER_COMMANDS
from td3_lightning.cli.help import settings_of


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(["--help"], capsys).splitlines()
    for command in (*COMMANDS, *OTHER_COMMANDS):
        assert any(line.split()[:1] == [command] and line.endswith(".") for line in lines), command


def test_help_of_a_command_is_short_and_about_our_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for words, name in ((["fit"], "layer_norm"), (["fit", "--model", "TD7"], "zs_dim"), (["record"], "episodes")):
        text = printed([*words, "--help"], capsys)
        assert len(text.splitlines()) < 200
        assert name in text
        assert "--data.batch_size 256" in text
        assert "--trainer.max_epochs 100" in text
        assert "obs_dim" not in text
    with pytest.raises(SystemExit):
        main(["fit", "--help-trainer"])
    assert "--trainer.num_sanity_val_steps" in capsys.readouterr().out


def test_every_setting_of_the_help_has_a_sentence() -> None:
    for agent in ("td3_lightning.TD3", "td3_lightning.TD7"):
        for command in COMMANDS:
            for section in settings_of(command, agent).values():
                for flag, (_, text) in section.items():
                    assert text.endswith("."), (command, flag, text)

"""Test the scripts that complete commands and flags in a shell."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from td3_lightning.cli.app import main

QUERY = """
source {script}
COMP_WORDS=({words}); COMP_CWORD={last}
_shtab_td3_lightning
printf "%s\\n" "${{COMPREPLY[@]}}"
"""


def completions(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of some words."""
    quoted = " ".join(f"'{word}'" for word in words)
    query = QUERY.format(script=script, words=quoted, last=len(words) - 1)
    process = subprocess.run(["bash", "-c", query], capture_output=True, text=True, check=True)
    return process.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="requires bash")
def test_bash_completes_commands_and_settings(tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    # A new process, because the script lists the subclasses that are imported, and other tests import and define many.
    command = [sys.executable, "-m", "td3_lightning", "--print_completion", "bash"]
    script = tmp_path / "script"
    script.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert completions(script, "td3-lightning", "re") == ["record"]
    assert completions(script, "td3-lightning", "fit", "--data.batch_s") == ["--data.batch_size"]
    assert "--collector.warmup_steps" in completions(script, "td3-lightning", "fit", "--collector.")


@pytest.mark.parametrize(("words", "got"), [(["fish"], "fish"), ([], "none"), (["=fish"], "fish")])
def test_other_shells_are_refused(words: list[str], got: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag = ["--print_completion", *words] if words != ["=fish"] else ["--print_completion=fish"]
    assert main(flag) == 2
    expected = f"--print_completion must be one of bash, zsh, tcsh, got {got}. Use --print_completion bash.\n"
    assert capsys.readouterr().err == expected


def test_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print_completion=zsh"]) == 2
    assert "requires the package shtab, got none. Use pip install" in capsys.readouterr().err

"""Test output on terminals that cannot encode every character."""

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from td3_lightning.reporting.console import make_streams_tolerant, printable
from tests.cli.test_app import FIT, PENDULUM, PROGRAM, SMALL, environment, folder, last, trained  # noqa: F401  # the fixtures

WITH_BAR = [word for word in SMALL if "progress_bar" not in word]
ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LATIN = {"PYTHONIOENCODING": "latin-1"}
NOISY = """
import gymnasium as gym
from gymnasium.envs.classic_control.pendulum import PendulumEnv


class Noisy(PendulumEnv):
    def reset(self, **kwargs):
        print("✓ reset")
        return super().reset(**kwargs)


gym.register("Noisy-v0", Noisy, max_episode_steps=200)
"""


def program(variables, *words):
    """Run the command line in a process with the given encoding."""
    clean = {name: value for name, value in environment().items() if not name.startswith(("LC_", "LANG"))}
    done = subprocess.run(
        [*PROGRAM, *map(str, words)], env={**clean, **variables}, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"UnicodeEncodeError" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("variables", [ASCII, LATIN], ids=["ascii", "latin-1"])
def test_run_and_test_on_a_terminal_without_unicode(variables, folder):  # noqa: F811
    folder.joinpath("here.yaml").write_text(f"# ±\n{PENDULUM}", encoding="utf-8")
    shown = program(variables, *FIT, *WITH_BAR, "--data.eval_episodes=2")
    said = program(variables, "test", "--ckpt_path=lightning_logs/here/version_0/checkpoints/last.ckpt")
    sign = b"+-" if variables == ASCII else b"\xb1"
    assert b" " + sign + b" " in shown
    assert b"mean " + sign + b" std" in said
    assert said.isascii() == (variables == ASCII)


def test_environment_that_prints_unicode_does_not_end_the_run(folder):  # noqa: F811
    folder.joinpath("noisy.py").write_text(NOISY)
    words = [*FIT, *SMALL, "--data.env_id=noisy:Noisy-v0"]
    shown = program({"PYTHONIOENCODING": "ascii", "PYTHONPATH": f"{environment()['PYTHONPATH']}:{folder}"}, *words)
    assert b"? reset" in shown


def test_run_name_that_the_terminal_cannot_encode(folder):  # noqa: F811
    shown = program({"PYTHONIOENCODING": "ascii"}, *FIT, *SMALL, "--name=café ✓")
    assert b"lightning_logs/caf? ?/version_0" in shown
    assert (folder / "lightning_logs" / "café ✓" / "version_0" / "curve.png").is_file()


def test_progress_bar_on_a_terminal_without_unicode(folder):  # noqa: F811
    """Use a pseudo-terminal, because the bar is drawn only on terminals."""
    owner, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    variables = {**environment(), "PYTHONIOENCODING": "ascii", "TERM": "xterm"}
    process = subprocess.Popen(
        [*PROGRAM, *FIT, *WITH_BAR, "--trainer.max_epochs=2", "--data.eval_episodes=2"],
        env=variables,
        stdout=terminal,
        stderr=subprocess.PIPE,
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(owner, 65536)
        except OSError:  # the process has closed its side
            break
        if not part:
            break
        shown += part
    assert process.wait(60) == 0, process.stderr.read()
    assert shown.isascii()
    assert b"%|#" in shown
    assert b" +- " in shown


def test_closed_streams_do_not_end_a_run(folder):  # noqa: F811
    command = " ".join([*PROGRAM, *FIT, *(f"'{word}'" for word in SMALL)])
    done = subprocess.run(["sh", "-c", f"{command} >&- 2>&-"], env=environment(), timeout=120, check=False)
    assert done.returncode == 0
    assert (folder / "lightning_logs" / "here" / "version_0" / "checkpoints" / "last.ckpt").is_file()


def test_output_to_closed_streams_is_discarded(monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    make_streams_tolerant()
    for stream in (sys.stdout, sys.stderr):
        with stream:
            assert stream.name == os.devnull
            assert not stream.isatty()


@pytest.mark.parametrize(
    ("encoding", "text", "expected"),
    [
        ("ascii", "1.00 ± 0.5 é", "1.00 +- 0.5 ?"),
        ("latin-1", "1.00 ± 0.5 █", "1.00 ± 0.5 #"),
        ("cp1252", "1.00 ± 0.5 █", "1.00 ± 0.5 #"),
        ("utf-8", "1.00 ± 0.5 \udcff", "1.00 ± 0.5 ?"),
        ("utf-16", "±", "±"),
    ],
)
def test_unencodable_characters_are_replaced(encoding, text, expected, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    assert printable(text) == expected
    monkeypatch.setattr(sys, "stdout", None)
    assert printable(text) == text.replace("\udcff", "?")


def test_strict_streams_become_tolerant_and_others_stay(monkeypatch):
    raw = io.BytesIO()
    strict, other = io.TextIOWrapper(raw, "ascii"), io.TextIOWrapper(io.BytesIO(), "ascii", "backslashreplace")
    monkeypatch.setattr(sys, "stdout", strict)
    monkeypatch.setattr(sys, "stderr", other)
    make_streams_tolerant()
    print("± ✓", flush=True)
    assert raw.getvalue() == b"+- ?\n"
    assert other.errors == "backslashreplace"
    monkeypatch.setattr(sys, "stdout", None)
    make_streams_tolerant()

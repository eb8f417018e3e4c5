"""Test output on terminals that cannot encode every character."""

import io
import subprocess
import sys

from td3_lightning.reporting.console import make_streams_tolerant
from tests.cli.test_app import FIT, PENDULUM, PROGRAM, SMALL, environment, folder  # noqa: F401  # the fixture

ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NOISY = """
import gymnasium as gym
from gymnasium.envs.classic_control.pendulum import PendulumEnv


class Noisy(PendulumEnv):
    def reset(self, **kwargs):
        print("✓ reset")
        return super().reset(**kwargs)


gym.register("Noisy-v0", Noisy, max_episode_steps=200)
"""


BOTH = """
import sys
from td3_lightning.__main__ import run
at = sys.argv.index("then")
sys.exit(run(sys.argv[1:at]) or run(sys.argv[at + 1 :]))
"""


def program(variables, *words):
    """Run two command lines in a process with the given encoding, with the word "then" between them."""
    clean = {name: value for name, value in environment().items() if not name.startswith(("LC_", "LANG"))}
    done = subprocess.run(
        [sys.executable, "-c", BOTH, *words], env={**clean, **variables}, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"UnicodeEncodeError" not in done.stderr
    return done.stdout


def test_run_and_test_on_a_terminal_without_unicode(folder):  # noqa: F811
    folder.joinpath("here.yaml").write_text(f"# ±\n{PENDULUM}", encoding="utf-8")
    folder.joinpath("noisy.py").write_text(NOISY)
    variables = {**ASCII, "PYTHONPATH": f"{environment()['PYTHONPATH']}:{folder}"}
    fit = [*FIT, *SMALL, "--data.eval_episodes=2", "--name=café ✓", "--data.env_id=noisy:Noisy-v0"]
    last = "lightning_logs/café ✓/version_0/checkpoints/last.ckpt"
    test = ["test", "--config=here.yaml", "--data.env_id=noisy:Noisy-v0", f"--ckpt_path={last}"]
    shown = program(variables, *fit, "then", *test)
    assert shown.count(b" ? ") > 1
    assert b"? reset" in shown
    assert b"lightning_logs/caf?? ???/version_0" in shown  # one for each byte
    assert b"mean ? std" in shown
    assert shown.isascii()
    assert (folder / last).is_file()


def test_closed_streams_do_not_end_a_run(folder):  # noqa: F811
    command = " ".join([*PROGRAM, *FIT, *(f"'{word}'" for word in SMALL)])
    done = subprocess.run(["sh", "-c", f"{command} >&- 2>&-"], env=environment(), timeout=120, check=False)
    assert done.returncode == 0
    assert (folder / "lightning_logs" / "here" / "version_0" / "checkpoints" / "last.ckpt").is_file()


def test_strict_streams_become_tolerant_and_others_stay(monkeypatch):
    raw = io.BytesIO()
    strict, other = io.TextIOWrapper(raw, "ascii"), io.TextIOWrapper(io.BytesIO(), "ascii", "backslashreplace")
    monkeypatch.setattr(sys, "stdout", strict)
    monkeypatch.setattr(sys, "stderr", other)
    make_streams_tolerant()
    print("± ✓", flush=True)
    assert raw.getvalue() == b"? ?\n"
    assert other.errors == "backslashreplace"
    monkeypatch.setattr(sys, "stdout", None)
    make_streams_tolerant()

"""Short version of `make crash-test`: resume after kills and signals at random moments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(900)
def test_resume_after_random_kills_is_bit_exact(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "support" / "crash_test.py"
    ended = subprocess.run(
        [sys.executable, program, "20", "--signals", "2", "--settings", "4", "--seed", "1", "--folder", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cells = [int(cell) for cell in ended.stdout.splitlines()[-1].split("|")[2:-1]]
    assert cells[:5] == [10 + 4, 10 + 4, 2 + 4, 2 + 4, 2 + 4]
    assert cells[5] >= 3 + 4  # runs that finished


def test_commands_of_make_crash_test_start() -> None:
    root = Path(__file__).parents[2]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    printed = subprocess.run(
        ["make", "--dry-run", "--always-make", "crash-test"], cwd=root, env=environment, capture_output=True, text=True
    )
    commands = [line for line in printed.stdout.splitlines() if "tests/support/" in line]
    assert len(commands) == 2
    words = commands[0].replace(".venv/bin/python", sys.executable).split(" tests/support/crash_test.py")[0]
    ended = subprocess.run(
        f"{words} tests/support/crash_test.py --help", cwd=root, env=environment, shell=True, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr.decode()

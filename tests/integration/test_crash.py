"""Short version of `make crash-test`: resume after kills and signals at random moments."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(900)
def test_resume_after_random_kills_is_bit_exact(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "support" / "crash_test.py"
    ended = subprocess.run(
        [sys.executable, program, "12", "--signals", "2", "--settings", "3", "--seed", "1", "--folder", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cells = [int(cell) for cell in ended.stdout.splitlines()[-1].split("|")[2:-1]]
    assert cells[:5] == [6 + 3, 6 + 3, 2 + 3, 2 + 3, 2 + 3]
    assert cells[5] >= 2 + 3  # runs that finished


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(600)
def test_resume_after_random_kills_of_ranks_is_bit_exact(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "support" / "rank_crash_test.py"
    ended = subprocess.run(
        [sys.executable, program, "2", "--layouts", "torchrun", "--seed", "14", "--folder", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = json.loads(ended.stdout.splitlines()[-1].removeprefix("torchrun "))
    assert counts["signals"] == 2
    assert counts["runs"] >= 1


@pytest.mark.parametrize(("ranks", "programs"), [("1", ["crash_test", "faulty_disk"]), ("2", ["rank_crash_test"])])
def test_commands_of_make_crash_test_start(ranks: str, programs: list[str]) -> None:
    root = Path(__file__).parents[2]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    printed = subprocess.run(
        ["make", "--dry-run", "--always-make", "crash-test", f"RANKS={ranks}"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
    )
    commands = [line for line in printed.stdout.splitlines() if "tests/support/" in line]
    assert [line.split("tests/support/")[1].split(".py")[0] for line in commands] == programs
    program = f"tests/support/{programs[0]}.py"
    words = commands[0].replace(".venv/bin/python", sys.executable).split(f" {program}")[0]
    ended = subprocess.run(f"{words} {program} --help", cwd=root, env=environment, shell=True, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()

"""A little of `make torture`: runs that are killed and stopped at random end as the one that nobody touched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(900)
def test_killed_and_stopped_at_random_it_is_the_same_run(tmp_path: Path) -> None:
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
    assert cells[5] >= 3 + 4  # runs that came to their end

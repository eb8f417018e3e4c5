"""Short version of `make crash-test`: resume after kills and signals at random moments."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import crash_test
from processes import program


@pytest.mark.timeout(900)
def test_resume_after_random_kills_is_bit_exact(tmp_path: Path) -> None:
    ended = subprocess.run(
        program(crash_test.__file__, "2", "--signals", "1", "--settings", "0", "--seed", "1", "--folder", tmp_path),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = json.loads(ended.stdout.splitlines()[-1])
    assert [counts[kind] for kind in crash_test.STATUS] == [1] * 5
    assert counts["runs"] >= 5  # runs that finished

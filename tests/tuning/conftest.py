"""Sweeps whose runs are a program that takes no time."""

from pathlib import Path

import pytest

import fit_stub
from td3_lightning.tuning import node, pool
from td3_lightning.tuning.run import Plan


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Return the plan of a sweep in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(node, "PROGRAM", [fit_stub.__file__])
    monkeypatch.setattr(pool, "POLL_INTERVAL", 0.01)
    monkeypatch.setattr(pool, "MAX_READ_SHARE", 1.0)
    folder = tmp_path / "lightning_logs" / "toy"
    return Plan("toy", folder, ["toy.yaml"], [{"model": {"tau": 0.2}}], ["--model.tau", "0.1"], workers=2)

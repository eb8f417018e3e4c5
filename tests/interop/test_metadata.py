"""Metadata of policies: plain JSON that describes the environment and the training."""

import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from td3_lightning import ReplayData
from td3_lightning.interop import metadata
from td3_lightning.interop.metadata import checkpoint_metadata, commit

SETTINGS = {"obs_dim": 2, "action_low": [-1.0], "action_high": [2.0]}
CLOCKS = {"env_steps": 30, "updates": 20, "episodes": 1}
CHECKPOINT: dict[str, Any] = {"hyper_parameters": SETTINGS, "clocks": CLOCKS}


def test_spaces_are_those_of_the_environment() -> None:
    data = ReplayData("MountainCarContinuous-v0")
    described = checkpoint_metadata(CHECKPOINT, data)
    assert described["env_id"] == "MountainCarContinuous-v0"
    space = described["observation_space"]
    assert (space["type"], space["shape"], space["high"]) == ("Box", [2], pytest.approx([0.6, 0.07]))
    assert described["action_space"] == {"type": "Box", "shape": [1], "low": [-1.0], "high": [2.0]}
    assert json.loads(json.dumps(described, allow_nan=False)) == described


def test_unknown_bounds_are_null() -> None:
    described = checkpoint_metadata({**CHECKPOINT, "config": {"data": {"env_id": "a-v0", "wrappers": ["b"]}}})
    assert described["observation_space"] == {"type": "Box", "shape": [2], "low": [None] * 2, "high": [None] * 2}
    assert (described["env_id"], described["wrappers"]) == ("a-v0", ["b"])
    assert (described["algorithm"], described["env_steps"], described["updates"]) == ("TD3", 30, 20)


def test_evaluation_is_the_newest_score() -> None:
    for state, expected in (
        ({"monitor": "eval/lap_return", "current_score": torch.tensor(3.5)}, {"eval/lap_return": 3.5}),
        ({"monitor": "a", "current_score": torch.tensor(math.nan)}, {"a": None}),
        ({"monitor": "a", "current_score": None}, {}),
    ):
        checkpoint = {**CHECKPOINT, "callbacks": {"Other": {}, "BestCheckpoint{'monitor': 'x'}": state}}
        assert checkpoint_metadata(checkpoint)["evaluation"] == expected


def test_commit_is_that_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "ROOT", tmp_path)
    assert commit() is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert commit() is None  # no commit yet
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
    assert re.fullmatch("[0-9a-f]{40}", str(commit()))
    monkeypatch.setenv("PATH", "")
    assert commit() is None  # git is not installed

"""Provoke each mistake of the FAQ, and compare the sentence that it gets."""

import errno
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from td3_lightning.cli.app import main
from tests.integration.test_documentation import SMALL

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in (ROOT / "docs" / "faq.md").read_text().splitlines()
    if line.startswith("| ") and " | `" in line
]
MY_PACKAGE = """
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box


class Task(gym.Env):
    observation_space = Box(-1, 1, (3,), np.float32)

    def __init__(self, reward=0.0, bound=1.0, fails=False):
        self.reward, self.fails = reward, fails
        self.action_space = Box(-bound, bound, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        if self.fails:
            raise RuntimeError("motor 3 is hot")
        return np.zeros(3, np.float32), self.reward, False, False, {}


for name, faults in {
    "NaNReward-v0": {"reward": float("nan")},
    "Unbounded-v0": {"bound": np.inf},
    "Fails-v0": {"fails": True},
}.items():
    gym.register(name, entry_point=Task, max_episode_steps=50, kwargs=faults)
"""


def hide(package: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a function that makes a package look uninstalled."""
    return lambda monkeypatch: monkeypatch.setitem(sys.modules, package, None)


def forbid_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(path: Any, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "mkdir", mkdir)


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", save)


PREPARE = {
    "missing extra of an environment": hide("pybullet_envs_gymnasium"),
    "missing extra of a command": hide("ray"),
    "no write permission": forbid_folders,
    "full disk": fill_disk,
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_mistake_gets_the_sentence_of_the_faq(
    row: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake, command, sentence = row
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_package", raising=False)
    Path("my_package.py").write_text(MY_PACKAGE)
    Path("lightning_logs").mkdir()
    Path("lightning_logs", "reference").symlink_to(ROOT / "lightning_logs" / "reference")
    PREPARE.get(mistake, lambda _: None)(monkeypatch)
    words = shlex.split(command.strip("`"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            code = main([*words[:1], *(SMALL if words[0] == "fit" else []), *words[1:]])
        except SystemExit as ended:
            code = ended.code
    output = capsys.readouterr()
    said = " ".join(" ".join([output.out, output.err, *(str(each.message) for each in warned)]).split())
    assert "Traceback" not in said
    assert re.search(re.escape(sentence).replace(re.escape("..."), ".+?"), said), said
    goes_on = mistake in ("full disk", "metric that nothing logs")
    assert code == (0 if goes_on else 1 if " is not stored. " in said or "diverged" in said else 2)


def test_faq_lists_about_thirty_mistakes() -> None:
    assert len(ROWS) >= 30
    assert PREPARE.keys() <= {row[0] for row in ROWS}

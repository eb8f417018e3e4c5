"""Malicious checkpoints run no code and change no file outside of the run. They may end in an error of a library."""

import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hostile import MODULE, Guard, mutated
from td3_lightning import Policy, UsageError
from td3_lightning.cli.app import main
from td3_lightning.errors import RunError

DRAWS = int(os.environ.get("TD3_HOSTILE_DRAWS", "30"))
SEED = int(os.environ.get("TD3_HOSTILE_SEED", "33"))
CONFIG = """
data:
  env_id: Pendulum-v1
  env_kwargs: {g: 9.8, max_episode_steps: 20}
  wrappers: [{class_path: td3_lightning.ActionRepeat, init_args: {repeat: 2}}]
  steps_per_epoch: 4
  batch_size: 4
  capacity: 100
  eval_episodes: 1
  test_episodes: 1
model:
  hidden_dims: [8]
  encoder: {class_path: td3_lightning.Trunk, init_args: {widths: [6]}}
  actor_lr: {class_path: td3_lightning.Linear, init_args: {start: 0.003, end: 0.002, steps: 9}}
collector: {warmup_steps: 10}
trainer:
  accelerator: cpu
  enable_progress_bar: false
  callbacks:
  - {class_path: EarlyStopping, init_args: {monitor: eval/return_mean, mode: max, patience: 50}}
  - {class_path: ModelCheckpoint, init_args: {filename: "own_{epoch}", save_top_k: 1}}
"""
GUARD = Guard()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, and files that must not change."""
    folder = tmp_path_factory.mktemp("good")
    before = Path.cwd()
    os.chdir(folder)
    try:
        Path("run.yaml").write_text(CONFIG)
        assert main(["fit", "--config", "run.yaml", "--trainer.max_epochs=2"]) == 0
    finally:
        os.chdir(before)
    Path(folder, f"{MODULE}.py").write_text("open('PWNED', 'w').close()\nclass Evil: pass\n")
    Path(folder, "evilfile").write_text(f"class_path: {MODULE}.Evil\n")
    Path(folder, "victim.txt").write_text("precious")
    return folder


def use(command: str, path: Path) -> str:
    """Load a checkpoint with one command, and return the outcome."""
    if command == "api":
        try:
            Policy.load(path)  # calls load_from_checkpoint
        except (UsageError, RunError) as error:
            return str(error)
        return "loaded"
    words = {"test": ["--trainer.enable_progress_bar=false"], "fit": ["--config=run.yaml", "--trainer.max_epochs=3"]}
    status = main([command, *words[command], f"--ckpt_path={path}"])
    assert status in (0, 1, 2), status
    return f"ended with {status}"


def attack(good: Path, folder: Path, number: int, rng: np.random.Generator, capsys: Any) -> str:
    """Load one mutated checkpoint and return the outcome; raise AssertionError for what must not happen."""
    shutil.copytree(good, folder)
    os.chdir(folder)
    last = Path("lightning_logs/run/version_0/checkpoints/last.ckpt")
    changed, said = mutated(torch.load(last, weights_only=True), rng)
    command = ("test", "fit", "api", "api", "api")[number % 5]
    try:
        torch.save(changed, last)
    except (UnicodeEncodeError, OverflowError):  # not every text can be written
        return "unwritable"
    outside = {path for path in folder.rglob("*") if "lightning_logs" not in path.parts}
    capsys.readouterr()
    try:
        with GUARD.watching(folder / "lightning_logs"):
            outcome = use(command, last)
    except Exception as error:  # of torch, Lightning or NumPy
        outcome = f"raised {type(error).__name__}"
    except BaseException as error:
        raise AssertionError(f"draw {number}, {command}: {said[:1000]}") from error
    printed = capsys.readouterr()
    assert not GUARD.seen, f"draw {number}, {command}: {said[:1000]}: {GUARD.seen}"
    if outcome == "ended with 2":
        assert printed.err.strip().count("\n") == 0, f"draw {number}, {command}: {said[:500]}: {printed.err}"
    assert {path for path in folder.rglob("*") if "lightning_logs" not in path.parts} == outside, said[:1000]
    assert Path("victim.txt").read_text() == "precious"
    return outcome if command == "api" else f"{outcome} {printed.err[-200:]}"


def test_mutated_checkpoints_run_nothing_and_touch_nothing(good: Path, tmp_path: Path, monkeypatch: Any, capsys: Any):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(good))
    modules = set(sys.modules)
    outcomes = []
    for number in range(DRAWS):
        folder = tmp_path / str(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcomes.append(attack(good, folder, number, np.random.default_rng((SEED, number)), capsys))
        os.chdir(tmp_path)
        shutil.rmtree(folder)
    assert not {name for name in set(sys.modules) - modules if name.split(".")[0] in (MODULE, "antigravity", "this")}
    refused = sum("ended with 2" in outcome or "refused" in outcome or "raised" in outcome for outcome in outcomes)
    worked = sum("ended with 0" in outcome or outcome == "loaded" for outcome in outcomes)
    assert refused > DRAWS / 4, "the mutations do nothing"
    assert worked > DRAWS / 50, "nothing is accepted any more"

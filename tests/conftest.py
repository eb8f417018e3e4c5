"""What every test wants: one thread, no screen, quiet logs, known seeds, and a short way to train."""

import gc
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

os.environ.update(MPLBACKEND="Agg", SDL_VIDEODRIVER="dummy", SDL_AUDIODRIVER="dummy")
os.environ.pop("PYTHONUNBUFFERED", None)  # without it, as on most machines, output waits in a buffer

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from td3_lightning.cli.deferred_compiler import defer_compiler

defer_compiler()  # as the command line does, which saves 2 s of CPU time in a process

import lightning as L  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it


CONSTANTS: dict[ModuleType, dict[str, Any]] = {}  # of each module of the package, when it was first seen


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files with tests of more than 10 s first, so that two workers end at the same time."""
    items.sort(key=lambda item: item.path.stem not in ("test_crash", "test_nodes", "test_resume", "test_sweep"))


def pytest_collection_finish() -> None:
    gc.freeze()  # the imported modules, which a collection and the end of a forked process would search


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("td3_lightning") and module not in CONSTANTS:
            CONSTANTS[module] = {each: value for each, value in vars(module).items() if each.isupper()}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fail a test that leaves a constant of the package replaced, which later tests of this process would use."""
    yield
    all_of = ((module, name, value) for module, values in CONSTANTS.items() for name, value in values.items())
    replaced = [(module, name, value) for module, name, value in all_of if getattr(module, name, value) is not value]
    for each in replaced:
        setattr(*each)
    assert not replaced, f"replaced without monkeypatch: {[(module.__name__, name) for module, name, _ in replaced]}"


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    L.seed_everything(1, verbose=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", module="pygame")
        yield


@pytest.fixture(autouse=True)
def _own_datasets(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Minari out of the home directory."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


@pytest.fixture(autouse=True)
def _restore_precision() -> Iterator[None]:
    """Undo `trainer.float32_matmul_precision` of a configuration, which holds for the whole process."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(autouse=True)
def _blank_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw empty curves, because the axes and labels take a quarter of the time of a short run."""
    monkeypatch.setattr("td3_lightning.reporting.learning_curve.draw_curve", lambda *_: Figure((0.1, 0.1)))


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk, which takes a fifth of the time of many tests. Tests of `fsync` replace it again."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.fixture
def make_trainer(tmp_path: Any) -> Callable[..., L.Trainer]:
    """Builds a Trainer that writes nothing and shows nothing unless it is told to."""

    def make(**kwargs: Any) -> L.Trainer:
        quiet: dict[str, Any] = {
            "accelerator": "cpu",
            "default_root_dir": tmp_path,
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "enable_progress_bar": False,
            "logger": False,
            "max_epochs": 1,
            "num_sanity_val_steps": 0,
        }
        return L.Trainer(**{**quiet, **kwargs})

    return make


@pytest.fixture(params=["fast", "readable"])
def update_rule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the fast update rule, if it supports the agent, and with the readable one."""
    if request.param == "readable":
        monkeypatch.setattr("td3_lightning.algorithm.update_rules._factories", [])
    return str(request.param)

"""Processes of a distributed run. Lightning, torchrun and SLURM start them, watch them and end them."""

import hashlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import distributed

from td3_lightning.errors import UsageError
from td3_lightning.tuning.node import SWEEP

TIMEOUT = timedelta(minutes=10)  # in which every process must reach a collective operation
INTERVAL = 1.0  # seconds between two checks of the parent
GRACE = 30.0  # seconds to save and exit after SIGTERM


def strategy_with_timeout(settings: Mapping[str, Any]) -> Any:
    """Return DDP with a time limit for several processes, so that none waits 30 minutes for a lost one.

    Args:
        settings: Settings of the Trainer.

    Returns:
        The strategy; that of the settings for one process, or if it is not "auto" or "ddp".
    """
    strategy, devices = settings["strategy"], str(settings["devices"])
    processes = int(devices) * settings["num_nodes"] if devices.isdecimal() else 1
    return DDPStrategy(timeout=TIMEOUT) if strategy in ("auto", "ddp") and processes > 1 else strategy


def started_by_lightning() -> bool:
    """Return whether Lightning has started this process as a rank above 0 on the machine of its launcher."""
    by_others = distributed.is_available() and distributed.is_torchelastic_launched()
    return not by_others and "SLURM_PROCID" not in os.environ and int(os.environ.get("LOCAL_RANK", "0")) > 0


def check_processes(trainer: L.Trainer) -> None:
    """Raise `UsageError` if a launcher has started more processes than the Trainer counts.

    Each of them would train alone, and only the first would write logs.
    """
    by_torchrun = distributed.is_available() and TorchElasticEnvironment.detect()
    by_slurm = "SLURM_PROCID" in os.environ
    started = int(os.environ.get("WORLD_SIZE" if by_torchrun else "SLURM_STEP_NUM_TASKS", "1"))
    if (by_torchrun or by_slurm) and started > trainer.world_size:
        raise UsageError(
            f"trainer.devices times trainer.num_nodes must be {started}, the number of processes of this run, got "
            f"{trainer.world_size}. Set both, or start independent runs with env -u SLURM_PROCID -u SLURM_NTASKS."
        )


def check_same(trainer: L.Trainer, model: dict[str, Any]) -> None:
    """Raise `UsageError` if this process has other settings of the agent or another checkpoint than the first one.

    Args:
        trainer: Trainer, whose processes have formed a group.
        model: Settings of the agent, as plain values.
    """
    if trainer.world_size == 1:
        return
    path = trainer.ckpt_path
    own = {"model": model, "ckpt_path": path and hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]}
    for name, first in trainer.strategy.broadcast(own).items():
        if own[name] != first:
            fix = "Give every node the same configuration and, to resume, the same run folder."
            raise UsageError(f"{name} must be the same in every process, got {first} and {own[name]}. {fix}")


def watch_parent() -> None:
    """End this process when its launcher has ended: that of torchrun, of Lightning, or of a sweep."""
    sweep = os.environ.pop(SWEEP, None)  # not for the processes that this one starts
    by_torchrun = distributed.is_available() and distributed.is_torchelastic_launched()
    if sweep or by_torchrun or started_by_lightning():
        parent = int(sweep) if sweep else os.getppid()
        threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    os.kill(os.getpid(), signal.SIGTERM)  # training saves and stops
    time.sleep(GRACE)
    os._exit(1)  # it is blocked by a collective operation

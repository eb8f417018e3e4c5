"""Comparison of two runs: checkpoints, metrics.csv and TensorBoard events, to the last bit."""

import csv
import hashlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from td3_lightning import TD3
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from td3_lightning.serialization.segment_files import FOLDER, with_rows

WALL_CLOCK = ("train/steps_per_second", "train/updates_per_second")


class Stops(Callback):
    """Send a signal to this process at a given hook and update."""

    def __init__(self, moment: str, updates: int, number: int = signal.SIGTERM) -> None:
        self.updates, self.number = updates, number
        setattr(self, moment, self._send)

    def _send(self, trainer: L.Trainer, module: TD3, *_: Any) -> None:
        if module.updates == self.updates:
            signal.raise_signal(self.number)


class SavesAtEnd(Callback):
    """Save a checkpoint after the last evaluation."""

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        trainer.save_checkpoint(f"{trainer.default_root_dir}/last.ckpt")


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the exact bits of every number in a checkpoint."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves(item, f"{name}/{index}")
    elif isinstance(value, torch.Tensor):
        flat = value.flatten().clone(memory_format=torch.contiguous_format)
        bits = flat.view(torch.uint8).numpy().tobytes()  # numpy has no bfloat16
        yield name, f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(bits).hexdigest()}"
    else:
        yield name, repr(value)


def whole(path: Path) -> dict[str, Any]:
    """Read a checkpoint with the replay rows instead of the names of their segment files."""
    checkpoint = read_checkpoint(path)
    for rank in checkpoint["ReplayData"]["ranks"]:
        rank["replay"] = with_rows(rank["replay"], path.parent / FOLDER)
        length = rank["replay"]["layout"]["capacity"] // rank["replay"]["layout"]["num_envs"]
        for ring in rank["replay"]["rings"]:
            ring.pop("segments", None)
            ring["rows"] = torch.cat([rows for _, rows in ring["rows"]])[-length:]  # without overwritten rows
    return checkpoint


def values(path: Path) -> dict[str, str]:
    """Return the exact bits of every number in a checkpoint by its name."""
    return dict(leaves(whole(path)))


def differences(one: Path | dict[str, str], other: Path) -> list[str]:
    """Return the names of the values that differ between two checkpoints, without paths and file lengths.

    Args:
        one: A checkpoint, or its `values`.
        other: Another checkpoint.
    """
    left, right = values(one) if isinstance(one, Path) else one, values(other)
    return sorted(
        name
        for name in left.keys() | right.keys()
        if not {"ModelCheckpoint", "LogRollback"} & set(re.split("[/{]", name)) and left.get(name) != right.get(name)
    )


def rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of `metrics.csv` without empty cells and without the wall clock."""
    with (folder / "metrics.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    return [{name: cell for name, cell in row.items() if cell and name not in WALL_CLOCK} for row in table]


def events(folder: Path) -> list[tuple[str, int, float]]:
    """Return the scalars of TensorBoard without the wall clock."""
    shown = EventAccumulator(str(folder)).Reload()
    return [
        (name, event.step, event.value)
        for name in sorted(shown.Tags()["scalars"])
        for event in shown.Scalars(name)
        if name not in WALL_CLOCK
    ]

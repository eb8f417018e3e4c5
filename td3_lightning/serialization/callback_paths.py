"""Removal of paths in the state of a ModelCheckpoint that lead out of its folder."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

PATHS = ("best_model_path", "kth_best_model_path", "last_model_path")
MAX_LENGTH = 255  # of a file name; the regular expression below takes long for long texts
RESERVED = ("last.ckpt", "last-1.ckpt")  # written by LastCheckpoint


def contain_paths(states: dict[str, Any], callbacks: Iterable[Callback], loaded_from: str) -> None:
    """Replace the states of all ModelCheckpoints in a checkpoint by `contained` ones, in place.

    Args:
        states: States of callbacks in a checkpoint.
        callbacks: The Trainer's.
        loaded_from: The checkpoint's folder.
    """
    for callback in callbacks:
        if isinstance(callback, ModelCheckpoint) and (state := states.get(callback.state_key)):
            states[callback.state_key] = contained(state, callback, loaded_from)


def contained(state: dict[str, Any], callback: ModelCheckpoint, loaded_from: str) -> dict[str, Any]:
    """Return a ModelCheckpoint's state in which every path is a file that the callback writes in its own folder.

    Lightning deletes files that the state names. Of a stored path only the part below the stored folder is used, and
    only if the callback itself gives its files such names. All other paths are dropped.

    Args:
        state: The state in a checkpoint.
        callback: The callback that takes it.
        loaded_from: The checkpoint's folder. If it is the callback's, the run may have been moved there.
    """
    folder, held = str(callback.dirpath or ""), str(state.get("dirpath") or "")
    continues = held == folder or os.path.realpath(loaded_from) == os.path.realpath(folder)

    def own(path: str) -> str:
        return own_file(path, held, callback) if continues else ""

    best = {own(path): score for path, score in state.get("best_k_models", {}).items() if own(path)}
    paths = {name: own(state.get(name, "")) for name in PATHS}
    if paths.get("kth_best_model_path") not in best:  # Lightning looks it up there
        paths["kth_best_model_path"] = _worst(best, callback)
    return {**state, **paths, "best_k_models": best}


def _worst(best: dict[str, Tensor], callback: ModelCheckpoint) -> str:
    """Return the path that is replaced next; empty while there is room for more."""
    if len(best) != callback.save_top_k:
        return ""
    return (max if callback.mode == "min" else min)(best, key=lambda path: float(best[path]))


def own_file(path: str, folder: str, callback: ModelCheckpoint) -> str:
    """Return the path of a file in the callback's folder; empty if the callback does not write such a file.

    Args:
        path: A path in a checkpoint.
        folder: The folder that it is relative to, which may be the callback's former one.
        callback: The callback.
    """
    if not path or not callback.dirpath or "\0" in path + folder:
        return ""
    name = os.path.relpath(path, folder or ".")
    home = Path(str(callback.dirpath), name)
    if not writes(callback, name) or home.is_dir():
        return ""
    real, real_folder = os.path.realpath(home.parent), os.path.realpath(str(callback.dirpath))
    return str(home) if os.path.commonpath([real, real_folder]) == real_folder else ""


def writes(callback: ModelCheckpoint, name: str) -> bool:
    """Return whether a callback gives its files such names, relative to its folder."""
    if len(name) > MAX_LENGTH or name.startswith("..") or os.path.isabs(name):
        return False
    if name in RESERVED and not callback.save_last:
        return False
    templates = [callback.filename or "{epoch}-{step}"]
    templates += [callback.CHECKPOINT_NAME_LAST] if callback.save_last else []
    ending = rf"(-v\d+)?{re.escape(callback.FILE_EXTENSION)}"
    return any(re.fullmatch(_pattern(one, callback.auto_insert_metric_name) + ending, name) for one in templates)


def _pattern(template: str, with_names: bool) -> str:
    """Return a regular expression for the names that a template gives, where a metric has any value."""
    parts = re.split(r"\{([^:}]*)[^}]*\}", template)  # text and names of metrics in turn
    metrics = [f"{re.escape(name)}=[^/]*" if with_names else "[^/]*" for name in parts[1::2]]
    return "".join(re.escape(part) + metric for part, metric in zip(parts[::2], [*metrics, ""], strict=True))

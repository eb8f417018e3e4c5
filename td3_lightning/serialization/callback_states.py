"""Checks of callback states in a checkpoint, and removal of paths that lead out of the run's folder."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, Timer, WeightAveraging
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from torch import Tensor

from td3_lightning.serialization import values as form
from td3_lightning.serialization.values import InvalidValueError

PATHS = ("best_model_path", "kth_best_model_path", "last_model_path")
MAX_LENGTH = 255  # of a file name; the regular expression below takes long for long texts
RESERVED = ("last.ckpt", "last-1.ckpt")  # written by LastCheckpoint


def score(value: Any, name: str) -> None:
    """Check for a tensor of one number."""
    if not isinstance(value, Tensor):
        raise InvalidValueError(name, "a tensor of one number", value)
    form.scalar(value, name)


def stopping_reason(value: Any, name: str) -> None:
    """Check for the value of an `EarlyStoppingReason`."""
    if type(value) is not int or value not in [reason.value for reason in EarlyStoppingReason]:
        raise InvalidValueError(name, "a reason to stop", value)


MODEL_CHECKPOINT = form.fields(
    {"best_model_score": form.optional(score), "current_score": form.optional(score), "best_model_path": form.text},
    {
        "kth_value": score,
        "kth_best_model_path": form.text,
        "last_model_path": form.text,
        "best_k_models": form.by_name(score),
        "dirpath": form.optional(form.text),
    },
)

LIGHTNING: dict[type, form.Check] = {
    ModelCheckpoint: MODEL_CHECKPOINT,
    WeightAveraging: form.fields({"latest_update_step": form.integer}),
    EarlyStopping: form.fields(
        {"wait_count": form.count, "stopped_epoch": form.count, "best_score": score, "patience": form.count},
        {"stopping_reason": stopping_reason, "stopping_reason_message": form.optional(form.text)},
    ),
    Timer: form.fields({}, {"time_elapsed": form.by_name(form.number)}),
}


def check_callbacks(states: dict[str, Any], callbacks: Iterable[Callback], loaded_from: str) -> None:
    """Check the states of callbacks, and drop paths that lead elsewhere, in place.

    A callback has its check in `check_state(state, name)`, a static method. Those of Lightning are checked here.

    Args:
        states: The states in a checkpoint.
        callbacks: The Trainer's.
        loaded_from: The checkpoint's folder.

    Raises:
        InvalidValueError: A state does not have the required form.
    """
    for callback in callbacks:
        state = states.get(callback.state_key)
        if not state:
            continue
        for kind in type(callback).__mro__:
            check = vars(kind).get("check_state", LIGHTNING.get(kind))
            if check is not None:
                check(state, f"callbacks.{kind.__name__}")
                break
        if isinstance(callback, ModelCheckpoint):
            states[callback.state_key] = contained(state, callback, loaded_from)


# Paths.


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

"""What a checkpoint may name: classes of this package, and files that Lightning writes in its folder.

A checkpoint may be untrusted. Its settings are plain, name only classes of this package, Gymnasium's wrappers, and what
the user names too, and are no larger than the checkpoint. The constructors that receive them check their types and
ranges. Of the paths in callback states, only those in the callback's own folder remain.
"""

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from td3_lightning.errors import UsageError, shown
from td3_lightning.serialization.configurable import Configurable, known_classes

Named = Callable[[str, str], bool]  # (text, setting): whether the user wrote this text for this setting

MAX_SIZE = 30_000_000  # of a setting that is not a width of a layer, such as the numbers in stacked frames
AGENTS = ("TD3", "TD7")  # other classes of this package may write files when they are made
MAX_STACK = 1_000  # observations that a wrapper stacks
PATHS = ("best_model_path", "kth_best_model_path", "last_model_path")  # in the state of a ModelCheckpoint

# A dotted name, a path, a URL, or text that a YAML parser would read as something other than text.
SUSPICIOUS = re.compile(r"[:/\\~\[\]{}\x00-\x1f\x7f]|\.\S|^\.|\.$|^[\s!&*%@`\"'#|>?,-]")
NUMERIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.inf|([\d-]+[T ])?\d+(:\d\d)+", re.IGNORECASE)

# RecordVideo writes files to a path in its arguments; the converters import other frameworks.
WRAPPERS = frozenset(
    name
    for name in gym.wrappers.__all__
    if isinstance(kind := vars(gym.wrappers).get(name), type)
    and issubclass(kind, gym.Wrapper)
    and name != "RecordVideo"
)


class NotNamedError(UsageError):
    """A checkpoint names code or a file that the user did not name."""

    def __init__(self, named: str, setting: str) -> None:
        super().__init__(f"{setting} names {named!r}")
        self.named, self.setting = named, setting


def plain(value: Any, name: str) -> Any:
    """Return a copy of settings that holds only dict, list, str, int, float, bool and None.

    Tuples become lists, other mappings become dicts.

    Raises:
        UsageError: The value holds something else.
    """
    if isinstance(value, list | tuple):
        return [plain(one, name) for one in value]
    if isinstance(value, Mapping) and all(isinstance(key, str | int | float | None) for key in value):
        return {key: plain(one, name) for key, one in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(
        f"{name} must be made of numbers, strings, lists and mappings to be saved, got {shown(value)}. Use a list "
        "instead, or ignore the argument in save_hyperparameters."
    )


def check_names(value: Any, setting: str, named: Named) -> None:
    """Check that plain settings name no class and no file, except allowed ones and those that the user names.

    Raises:
        NotNamedError: A text names code or a file.
    """
    if isinstance(value, dict) and isinstance(path := value.get("class_path"), str):
        if not is_allowed(path) and not named(path, f"{setting}.class_path"):
            raise NotNamedError(path, f"{setting}.class_path")
        value = {key: held for key, held in value.items() if key != "class_path"}
    if isinstance(value, str):
        # jsonargparse opens a file of this name as a configuration, which may name any class.
        if (_is_suspicious(value) or os.path.isfile(value.strip())) and not named(value, setting):
            raise NotNamedError(value, setting)
    elif isinstance(value, list):
        for held in value:
            check_names(held, setting, named)
    elif isinstance(value, dict):
        for key, held in value.items():
            if isinstance(key, str) and _is_suspicious(key) and not named(key, setting):
                raise NotNamedError(key, setting)
            check_names(held, f"{setting}.{key}", named)
            if key == "stack_size" and isinstance(held, int) and held > MAX_STACK:
                raise NotNamedError(f"stack_size {held}", setting)


def _is_suspicious(text: str) -> bool:
    return bool(SUSPICIOUS.search(text)) and not NUMERIC.fullmatch(text)


def is_allowed(path: str) -> bool:
    """Return whether a checkpoint may name a class: of settings, an agent, or a wrapper."""
    module, _, name = path.rpartition(".")
    if module == "gymnasium.wrappers":
        return name in WRAPPERS
    if not re.fullmatch(r"td3_lightning(\.[a-z][a-z0-9_]*)*", module):
        return False
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return False
    if not isinstance(found, type) or not found.__module__.startswith("td3_lightning.") or inspect.isabstract(found):
        return False
    return issubclass(found, Configurable | gym.Wrapper) or found.__name__ in AGENTS


def stored_arguments(kind: type, checkpoint: Mapping[str, Any], given: Iterable[str]) -> dict[str, Any]:
    """Return the hyperparameters in a checkpoint that a class's constructor takes.

    Args:
        kind: The class.
        checkpoint: The checkpoint, as `read_checkpoint` returns it.
        given: Names of the arguments that the user gives.

    Raises:
        UsageError: One names a class that is not imported, or is larger than the checkpoint.
    """
    stored = plain(checkpoint["hyper_parameters"], "hyper_parameters")
    known = set[str]()
    for constructor in (vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)):
        parameters = inspect.signature(constructor).parameters
        known |= parameters.keys()
        if all(each.kind is not each.VAR_KEYWORD for each in parameters.values()):
            break  # its bases receive no other arguments
    own = {name: value for name, value in stored.items() if name in known and name not in set(given)}
    imported = known_classes(Configurable)
    try:
        check_names(own, "hyper_parameters", lambda path, _: path in imported)
    except NotNamedError as error:
        raise UsageError(
            f"The checkpoint names {error.named!r} in {error.setting}, which is not part of td3_lightning. If you "
            "trust it, import it as an Encoder or another Configurable before you load the checkpoint, or pass the "
            "argument yourself."
        ) from error
    check_claims(own, checkpoint["state_dict"])
    return own


def check_claims(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Check that networks of these settings have no more weights than the checkpoint, before they are built.

    Raises:
        UsageError: A size exceeds that of the checkpoint.
    """
    held = sum(weight.numel() for weight in weights.values())
    inputs = [] if settings.get("encoder") else [settings.get("obs_dim", 1)]
    first = [*inputs, *(settings.get("hidden_dims") or [])[:1]]
    embedded = [[width, settings["zs_dim"]] for width in settings.get("hidden_dims", ()) if "zs_dim" in settings]
    values = list(_nested(settings))
    for widths in [first, *embedded, *(value for _, value in values if isinstance(value, list))]:
        sizes = [size for size in widths if isinstance(size, int)]
        if max(sum(a * b for a, b in pairwise(sizes)), sum(sizes[1:])) > held:
            raise UsageError(f"The checkpoint is refused: it holds {held:,} weights, too few for layers {widths}.")
    # A schedule's clock may be larger.
    integers = (v for key, v in values if isinstance(v, int) and key not in ("steps", "begin", "end", "start"))
    if max(map(abs, integers), default=0) > MAX_SIZE or settings.get("num_critics", 1) > held:
        raise UsageError("The checkpoint is refused: a setting is larger than any network that it holds.")


def _nested(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all values in nested settings, each with its key or index."""
    held = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, one in held:
        yield key, one
        yield from _nested(one)


def contain_paths(states: dict[str, Any], callbacks: Iterable[Callback], loaded_from: str) -> None:
    """Drop the paths in the states of all ModelCheckpoints that lead out of their folders, in place.

    Lightning deletes files that these states name.

    Args:
        states: States of callbacks in a checkpoint.
        callbacks: The Trainer's.
        loaded_from: The checkpoint's folder. If it is the callback's, the run may have been moved there.
    """
    for callback in callbacks:
        if not isinstance(callback, ModelCheckpoint) or not (state := states.get(callback.state_key)):
            continue
        folder, held = str(callback.dirpath or ""), str(state.get("dirpath") or "")
        continues = held == folder or os.path.realpath(loaded_from) == os.path.realpath(folder)
        own = partial(_own_file, held=held, folder=folder if continues else "")
        best = {own(path): score for path, score in state.get("best_k_models", {}).items() if own(path)}
        states[callback.state_key] = {
            **state,
            **{name: own(state.get(name, "")) for name in PATHS},
            "best_k_models": best,
        }


def _own_file(path: str, held: str, folder: str) -> str:
    """Return the path in a folder of a checkpoint that was in the folder `held`; empty if it is in no such folder."""
    home = os.path.join(folder, os.path.relpath(path, held or ".")) if path and folder else ""
    real, real_folder = os.path.realpath(os.path.dirname(home)), os.path.realpath(folder)
    is_inside = os.path.commonpath([real, real_folder]) == real_folder
    return home if is_inside and home.endswith(ModelCheckpoint.FILE_EXTENSION) else ""

"""Class of the agent, and the settings that a checkpoint holds: read, and checked before they are used."""

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.algorithm.td7 import TD7
from td3_lightning.errors import OTHER_YAML_ERRORS, UsageError, one_line, shown
from td3_lightning.reporting.run_dir import config_of
from td3_lightning.serialization.stored_settings import Named, NotNamedError, check_claims, check_names, plain
from td3_lightning.training.collector import Collector
from td3_lightning.training.data_module import ReplayData

# A class may have an enum as a default, which YAML cannot represent.
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, member: dumper.represent_data(member.value))


# The agents of this package. A checkpoint names no other class, unless the user names it, too.
AGENTS: dict[str, type[TD3]] = {"td3_lightning.TD3": TD3, "td3_lightning.TD7": TD7}
DEFAULT = "td3_lightning.TD3"
KEY = "model.class_path"

# Settings that a resumed run takes from its checkpoint, without those that an earlier version had. Not included:
# hardware, end of the run, callbacks and loggers.
KEPT: dict[str, Sequence[str] | None] = {
    "model": None,  # all but REMOVED
    "data": tuple(inspect.signature(ReplayData).parameters),
    "collector": tuple(inspect.signature(Collector).parameters),
    "checkpoint": ("monitor", "mode"),
    "trainer": (
        *("precision", "float32_matmul_precision", "deterministic", "check_val_every_n_epoch", "val_check_interval"),
        *("limit_train_batches", "limit_val_batches", "log_every_n_steps"),
    ),
}
REMOVED = ("gradients", "critic_hidden_dims", "critic_encoder", "normalize_rewards")  # of agents in published runs


def agent_path(name: Any) -> str:
    """Return the import path of an agent that the user names: TD7, td3_lightning.TD7 or a subclass my_module.MyTD3.

    Raises:
        UsageError: There is no such agent.
    """
    for path, kind in AGENTS.items():
        if name in (path, kind.__name__, f"{kind.__module__}.{kind.__qualname__}"):
            return path
    if isinstance(name, str) and "." in name and agent_class(name) is not None:
        return name
    wrong = one_line(name)[:100]
    raise UsageError(f"{KEY} must be {' or '.join(AGENTS)} or a subclass, got {wrong}. Use TD7, for example.")


def agent_class(path: str) -> type[TD3] | None:
    """Return the class at an import path, None if there is no agent."""
    module, _, name = path.rpartition(".")
    try:
        found = AGENTS.get(path) or getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError):
        return None
    return found if isinstance(found, type) and issubclass(found, TD3) else None


def saved_settings(
    checkpoint: Mapping[str, Any], path: str, files: Sequence[Mapping[str, Any]], typed: Sequence[str], command: str
) -> dict[str, Any]:
    """Return the settings of a checkpoint that a command uses, after checking each of them.

    Args:
        checkpoint: The checkpoint, as `read_checkpoint` returns it.
        path: Its path, for the message.
        files: Contents of the configuration files.
        typed: Words of the command line.
        command: Name of the command. Only "fit" uses the settings of the trainer and of the checkpoints.

    Raises:
        UsageError: A setting has the wrong type. Or it names code or a file outside this package that the user has not
            written for the same setting.
    """
    named = _named_in(files, typed)
    try:
        settings = kept(plain(checkpoint.get("config", {}), "config"))
        if command != "fit":
            settings = _kept_by_others(settings)
        check_kept(settings, named)
        check_claims(settings.get("model", {}), checkpoint["state_dict"])
    except NotNamedError as error:
        raise UsageError(
            f'{path} names "{one_line(error.named)[:100]}" in {error.setting}, which may be code or a file that is not '
            f"part of td3_lightning. If you trust it, add the configuration of the run, for example --config "
            f"{config_of(Path(path))}."
        ) from error
    return settings


def _kept_by_others(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that other commands than `fit` take from a checkpoint. Only `fit` uses `vector_env`."""
    settings = {key: value for key, value in settings.items() if key not in ("checkpoint", "trainer")}
    data = settings.get("data", {})
    return settings | {"data": {name: data[name] for name in data if name != "vector_env"}}


def requires_config(settings: Mapping[str, Any]) -> bool:
    """Return whether `test` requires the configuration besides the checkpoint, because the settings name code."""
    try:
        check_kept(_kept_by_others(settings), lambda value, setting: False)
    except NotNamedError:
        return True
    return False


def check_kept(settings: Mapping[str, Any], named: Named) -> None:
    """Check that the settings that a resumed run takes from its checkpoint name no code and no file of others.

    The parser checks their types. `named` returns whether the user has named a value.

    Raises:
        NotNamedError: A setting names code or a file that the user has not named.
    """
    free = {key: dict(held) if isinstance(held, dict) else held for key, held in settings.items()}
    if isinstance(free.get("data"), dict) and isinstance(dataset := free["data"].get("dataset"), dict):
        free["dataset"] = free["data"]["dataset"] = dict(dataset)  # only numbers are read from a dataset
    for section, name, form in CHECKED:
        value = free[section].get(name) if isinstance(free.get(section), dict) else None
        if isinstance(value, str):
            if not form.fullmatch(value) and not named(value, f"{section}.{name}"):
                raise NotNamedError(value, f"{section}.{name}")
            del free[section][name]
    for section, value in free.items():
        check_names(value, section, named)


def _named_in(files: Sequence[Mapping[str, Any]], typed: Sequence[str]) -> Named:
    """Return a predicate: whether the user wrote a text, in a file for the same setting or as a flag."""
    words = {found for word in typed for found in _texts(_read(word.split("=", 1)[-1]))}

    def named(value: str, setting: str) -> bool:
        section, _, rest = setting.removeprefix("a key of ").partition(".")
        name = rest.split(".")[0]
        held = [file.get(section) for file in files]
        own = [each.get(name) for each in held if isinstance(each, dict)]
        own += [file.get(f"{section}.{name}") for file in files]
        return value in words or any(value in _texts(each) for each in own)

    return named


DATASET_ID = re.compile(r"[\w-]+(/[\w-]+)*")
ENV_ID = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*")

# Settings whose text may contain what a name of code or of a file contains, and the form that it must have.
CHECKED = (
    ("data", "env_id", ENV_ID),  # "module:Id" imports the module
    ("dataset", "name", DATASET_ID),
    ("checkpoint", "monitor", re.compile(r"[^\x00-\x1f\x7f]{1,200}")),  # only a key
    ("trainer", "val_check_interval", re.compile("[0-9:.]{1,40}")),
)


def kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings of a configuration that `KEPT` lists, and its seed."""
    held = {key: config[key] for key in KEPT if config.get(key) is not None}
    for key, section in held.items():
        if not isinstance(section, Mapping):
            raise UsageError(f"The checkpoint is refused: its {key} must be a mapping, got {shown(section)}.")
        names = KEPT[key]
        held[key] = {
            each: value for each, value in section.items() if each not in REMOVED and each in (names or section)
        }
    return held | {key: config[key] for key in ("seed_everything",) if config.get(key) is not None}


def _read(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, *OTHER_YAML_ERRORS):
        return text


def _texts(settings: Any) -> Iterator[str]:
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping | list):
        for value in settings.values() if isinstance(settings, Mapping) else settings:
            yield from _texts(value)

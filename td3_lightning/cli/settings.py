"""Settings that a checkpoint holds: read, checked and compared with the configuration."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.errors import OTHER_YAML_ERRORS, UsageError, one_line, shown
from td3_lightning.reporting.run_dir import config_of
from td3_lightning.serialization.stored_settings import (
    Named,
    NotNamedError,
    check_claims,
    check_names,
    plain,
    without_removed,
)
from td3_lightning.training.collector import Collector
from td3_lightning.training.data_module import ReplayData

# A class may have an enum as a default, which YAML cannot represent.
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, member: dumper.represent_data(member.value))


SECTIONS = ("model", "data", "collector")

# Settings that a resumed run takes from its checkpoint. Not included: hardware, end of the run, callbacks and loggers.
KEPT = {
    **dict.fromkeys((*SECTIONS, "seed_everything")),
    "checkpoint": ("monitor", "mode", "save_top_k"),
    "trainer": (
        *("precision", "float32_matmul_precision", "deterministic", "check_val_every_n_epoch", "val_check_interval"),
        *("limit_train_batches", "limit_val_batches", "log_every_n_steps"),
    ),
}

LEAVES = (type(None), bool, int, float, str)
ENV_SIZES = ("obs_dim", "action_low", "action_high")

SIZES = (
    *(*ENV_SIZES, "hidden_dims"),
    *("num_critics", "layer_norm", "encoder", "zs_dim", "normalize_observations"),
)
EARLIER = {"normalize_observations": False}  # where an old checkpoint lacks them


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
        settings["model"] = without_removed(settings.get("model", {}))
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
    settings = {key: value for key, value in settings.items() if KEPT[key] is None}
    data = settings.get("data", {})
    return settings | {"data": {name: data[name] for name in data if name != "vector_env"}}


def requires_config(settings: Mapping[str, Any]) -> bool:
    """Return whether `test` requires the configuration besides the checkpoint, because the settings name code.

    Args:
        settings: The settings, as `kept` returns them, as plain values.
    """
    try:
        check_kept(_kept_by_others(settings), lambda value, setting: False)
    except NotNamedError:
        return True
    return False


def check_kept(settings: Mapping[str, Any], named: Named) -> None:
    """Check that the settings that a resumed run takes from its checkpoint name no code and no file of others.

    The parser checks their types.

    Args:
        settings: The settings, as `kept` returns them, as plain values.
        named: Returns whether the user has named a value.

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


def check_sizes(checkpoint: Mapping[str, Any], model: TD3) -> None:
    """Raise `UsageError` if a checkpoint belongs to networks of other sizes than the model's."""
    held = {**EARLIER, **checkpoint.get("hyper_parameters", {})}
    other = {
        name: f"{name} must be {one_line(held.get(name))[:100]}, as in the checkpoint, got {model.hparams[name]}"
        for name in SIZES
        if name in model.hparams and held.get(name) != model.hparams[name]
    }
    if other:
        of_env = other.keys() & ENV_SIZES
        fix = "Use the environment in which the checkpoint was trained." if of_env else "Remove the setting."
        raise UsageError(f"{'; '.join(other.values())}. {fix}")


def _require_mapping(value: Any, name: str) -> None:
    if not isinstance(value, Mapping):
        raise UsageError(f"The checkpoint is refused: its {name} must be a mapping, got {shown(value)}.")


def kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings of a configuration that `KEPT` lists."""
    kept = {}
    for key, names in KEPT.items():
        if config.get(key) is not None:
            if names is not None or key in SECTIONS:
                _require_mapping(config[key], key)
            kept[key] = {name: config[key][name] for name in names if name in config[key]} if names else config[key]
    for key, kind in (("data", ReplayData), ("collector", Collector)):  # without settings that an earlier version had
        known = inspect.signature(kind).parameters
        kept |= {key: {name: held for name, held in kept[key].items() if name in known}} if key in kept else {}
    return kept


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

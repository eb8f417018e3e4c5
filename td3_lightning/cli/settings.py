"""Settings that a checkpoint holds: read, checked and compared with the configuration."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.cli.agent_class import AGENTS, DEFAULT
from td3_lightning.errors import OTHER_YAML_ERRORS, UsageError, one_line
from td3_lightning.reporting.run_dir import config_of
from td3_lightning.serialization.checkpoint_schema import require_parts
from td3_lightning.serialization.optimizer_states import check_optimizers
from td3_lightning.serialization.schema import Named, NotNamedError, check_arguments
from td3_lightning.serialization.values import (
    InvalidValueError,
    by_name,
    fields,
    integer,
    mapping,
    number,
    optional,
    plain,
    text,
)
from td3_lightning.serialization.weights import check_sizes_of, check_weights
from td3_lightning.training.collector import Collector
from td3_lightning.training.data_module import ReplayData

# A class may have an enum as a default, which YAML cannot represent.
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, member: dumper.represent_data(member.value))


SECTIONS = ("model", "data", "collector")

# Settings that a resumed run takes from its checkpoint. Not included: hardware, end of the run, callbacks and loggers.
KEPT = {
    **dict.fromkeys((*SECTIONS, "seed_everything")),
    "checkpoint": ("monitor", "mode", "save_top_k", "filename"),
    "trainer": (
        *("precision", "float32_matmul_precision", "deterministic", "check_val_every_n_epoch", "val_check_interval"),
        *("limit_train_batches", "limit_val_batches", "log_every_n_steps"),
    ),
}

LEAVES = (type(None), bool, int, float, str)
ENV_SIZES = ("obs_dim", "action_low", "action_high")

SIZES = (
    *(*ENV_SIZES, "hidden_dims", "critic_hidden_dims"),
    *("num_critics", "layer_norm", "encoder", "critic_encoder", "zs_dim"),
    *("normalize_observations", "normalize_rewards"),
)
EARLIER = {"normalize_observations": False, "normalize_rewards": False}  # where an old checkpoint lacks them


def saved_settings(
    checkpoint: Mapping[str, Any], path: str, files: Sequence[str], typed: Sequence[str], command: str
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
        _check_same_agent(settings.get("model", {}), checkpoint)
        require_parts(checkpoint, training=command == "fit")
        check_sizes_of(settings.get("model", {}), checkpoint["state_dict"], "model")
    except InvalidValueError as error:
        raise UsageError(f"{path} is refused: {error}. Use a checkpoint that a run has saved.") from error
    except NotNamedError as error:
        raise UsageError(
            f'{path} names "{one_line(error.named)[:100]}" in {error.setting}, which may be code or a file that is not '
            f"part of td3_lightning. If you trust it, add the configuration of the run, for example --config "
            f"{config_of(Path(path))}."
        ) from error
    return settings


def _kept_by_others(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that other commands than `fit` take from a checkpoint. Only `fit` makes `vector_env`."""
    settings = {key: value for key, value in settings.items() if KEPT[key] is None}
    data = settings.get("data", {})
    return settings | {"data": {name: data[name] for name in data if name not in ("vector_env", "vector_kwargs")}}


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
    """Check the settings that a resumed run takes from its checkpoint.

    Args:
        settings: The settings, as `kept` returns them, as plain values.
        named: Returns whether the user has named a value.

    Raises:
        InvalidValueError: A setting has the wrong type.
        NotNamedError: A setting names code or a file that the user has not named.
    """
    for key, value in settings.items():
        CHECKS[key](value, key, named)


def _named_in(files: Sequence[str], typed: Sequence[str]) -> Named:
    """Return a predicate: whether the user wrote a text, in a file for the same setting or as a flag."""
    words = {found for word in typed for found in _texts(_read(word.split("=", 1)[-1]))}
    contents = [content for file in files if isinstance(content := _read(file), dict)]

    def named(value: str, setting: str) -> bool:
        section, _, rest = setting.removeprefix("a key of ").partition(".")
        name = rest.split(".")[0]
        held = [content.get(section) for content in contents]
        own = [each.get(name) for each in held if isinstance(each, dict)]
        own += [content.get(f"{section}.{name}") for content in contents]
        return value in words or any(value in _texts(each) for each in own)

    return named


def _check_seed(value: Any, setting: str, named: Named) -> None:
    integer(value, setting)
    if not 0 <= value < 2**32:
        raise InvalidValueError(setting, "an integer from 0 to 2**32 - 1", value)


def _check_model(value: Any, setting: str, named: Named) -> None:
    """Check the agent's settings against its class, which must be one of `AGENTS`."""
    mapping(value, setting)
    path = value.get("class_path", DEFAULT)
    if not isinstance(path, str) or path not in AGENTS:
        raise InvalidValueError(f"{setting}.class_path", " or ".join(AGENTS), path)
    arguments = {name: held for name, held in value.items() if name != "class_path"}
    check_arguments(arguments, AGENTS[path], setting, named)


def _check_data(value: Any, setting: str, named: Named) -> None:
    mapping(value, setting)
    arguments = {key: held for key, held in value.items() if key != "env_id"}
    dataset = value.get("dataset")
    if isinstance(dataset, dict) and DATASET_ID.fullmatch(str(dataset.get("name"))):  # only numbers are read from it
        arguments["dataset"] = {key: held for key, held in dataset.items() if key != "name"}
    check_arguments(arguments, ReplayData, setting, named)
    env_id = value.get("env_id")
    text(env_id, f"{setting}.env_id")
    if not ENV_ID.fullmatch(env_id) and not named(env_id, f"{setting}.env_id"):  # "module:Id" imports the module
        raise NotNamedError(env_id, f"{setting}.env_id")


def _check_best(value: Any, setting: str, named: Named) -> None:
    """Check the settings of the best checkpoints. A stored file name must not lead out of the run's folder."""
    mapping(value, setting)
    for name in ("monitor", "filename"):
        text(value.get(name, ""), f"{setting}.{name}")
    check_arguments(
        {key: held for key, held in value.items() if key in ("mode", "save_top_k")}, BestCheckpoint, setting, named
    )
    monitor, filename = value.get("monitor", "a"), value.get("filename", "a")
    if not (0 < len(monitor) <= MAX_METRIC and monitor.isprintable()):  # only a key: the name of any number in `info`
        raise InvalidValueError(f"{setting}.monitor", f"one line of 1 to {MAX_METRIC} characters", monitor)
    if not (filename.isprintable() and FILENAME.fullmatch(filename)) and not named(filename, FILENAME_SETTING):
        raise InvalidValueError(f"{setting}.filename", "a file name without a folder, with metrics in braces", filename)


def _check_word(value: Any, name: str) -> None:
    """Check for a number, a bool, or a short word or duration, for example "bf16-mixed" or "00:12:00:00"."""
    if isinstance(value, str):
        if not re.fullmatch("[0-9a-z:., -]{1,40}", value):
            raise InvalidValueError(name, "a number or a word", value)
    elif not isinstance(value, bool):
        number(value, name)


def _check_interval(value: Any, name: str) -> None:
    """Check for a number, a duration such as "00:12:00:00", or a mapping such as {minutes: 30}."""
    if isinstance(value, dict):
        by_name(integer)(value, name)
    else:
        _check_word(value, name)


DATASET_ID = re.compile(r"[\w-]+(/[\w-]+)*")
ENV_ID = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*")
MAX_METRIC = 200  # characters of the name of a metric
FILENAME_SETTING = "checkpoint.filename"
FILENAME = re.compile(
    r"(?!last(-1)?$)(?!\.)([^{}/\\]|\{([^][{}:.]|\.(?!_)){1,100}(:[0-9.,+ ]{0,4}[dfgeG%]?)?\})+"  # {name:format}
)

TRAINER = {
    **dict.fromkeys(("precision", "float32_matmul_precision", "deterministic"), optional(_check_word)),
    **dict.fromkeys(("check_val_every_n_epoch", "log_every_n_steps"), optional(integer)),
    **dict.fromkeys(("limit_train_batches", "limit_val_batches"), optional(number)),
    "val_check_interval": optional(_check_interval),
}

CHECKS: dict[str, Callable[[Any, str, Named], None]] = {
    "model": _check_model,
    "data": _check_data,
    "collector": lambda value, setting, named: check_arguments(value, Collector, setting, named),
    "seed_everything": _check_seed,
    "checkpoint": _check_best,
    "trainer": lambda value, setting, named: fields({}, TRAINER)(value, setting),
}


def _check_same_agent(model: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> None:
    """Check that the configuration in a checkpoint names the agent whose weights it holds."""
    held = AGENTS[model.get("class_path", DEFAULT)].algorithm
    if model and held != checkpoint.get("algorithm", "TD3"):
        raise InvalidValueError("algorithm", f"{held!r}, as in config.model", checkpoint.get("algorithm"))


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
    try:
        check_weights(checkpoint, model, model.strict_loading)
        if "optimizer_states" in checkpoint:
            check_optimizers(checkpoint["optimizer_states"], list(model.configure_optimizers()))
    except InvalidValueError as error:
        raise UsageError(f"The checkpoint is refused: {error}. Use a checkpoint that a run has saved.") from error


def kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings of a configuration that `KEPT` lists."""
    kept = {}
    for key, names in KEPT.items():
        if config.get(key) is not None:
            if names is not None or key in SECTIONS:
                mapping(config[key], key)
            kept[key] = {name: config[key][name] for name in names if name in config[key]} if names else config[key]
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

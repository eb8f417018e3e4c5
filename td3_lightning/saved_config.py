"""The configuration that a checkpoint holds: put there, taken out, compared."""

import json
import os
import pydoc
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_only

from td3_lightning.durable import write_durably
from td3_lightning.errors import UsageError
from td3_lightning.module import TD3
from td3_lightning.run_folders import config_of, continues_in, holds_a_run
from td3_lightning.speech import say

# A class may have a default that YAML has no word for.
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, member: dumper.represent_data(member.value))

SECTIONS = ("model", "data", "collector")
# What a run takes from the checkpoint that it goes on from: not where it runs, when it ends, and what watches it.
KEPT = {
    **dict.fromkeys((*SECTIONS, "seed_everything")),
    "checkpoint": ("monitor", "mode", "save_top_k", "filename"),
    "trainer": (
        *("precision", "deterministic", "check_val_every_n_epoch", "val_check_interval"),
        *("limit_train_batches", "limit_val_batches", "log_every_n_steps"),
    ),
}
SIZES = ("obs_dim", "action_low", "action_high", "hidden_dims", "num_critics", "layer_norm", "encoder")


class SaveConfig(SaveConfigCallback):
    """Keeps the configuration beside the logs and in every checkpoint, without what is said of one start alone."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace) -> None:
        config = config.clone()
        config.ckpt_path, config.data.empty_replay = None, False
        super().__init__(parser, config)
        self._file: Path | None = None  # its path, once known
        self._written = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Do nothing: a run that cannot begin leaves no folder."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check before the warm-up that config.yaml can be written and is not another one."""
        folder = self._folder(trainer)
        if folder is None:
            return
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not there.is_dir():
            raise _cannot_be_written(str(folder), f"{there} is no folder")
        if not os.access(there, os.W_OK):
            raise _cannot_be_written(str(folder), f"no permission for {there}")
        if trainer.is_global_zero and not continues_in(trainer, folder):
            _check_is_free(folder / "config.yaml")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write config.yaml, since the run has begun."""
        self._write(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the settings that a resumed run keeps, as plain data.

        Write config.yaml if it is missing: the warm-up failed, or the folder was deleted during the run.
        """
        self._write(trainer)
        checkpoint["config"] = json.loads(json.dumps(_kept(self.config.as_dict()), default=str))

    def _folder(self, trainer: L.Trainer) -> Path | None:
        """The run's folder. All ranks must call this, since Lightning broadcasts it."""
        folder = trainer.log_dir if trainer.loggers else None
        return None if folder is None else Path(folder).absolute()

    def _write(self, trainer: L.Trainer) -> None:
        if self._file is None:
            folder = self._folder(trainer)
            self._file = None if folder is None else folder / "config.yaml"
        if self._file is None or not trainer.is_global_zero or (self._written and self._file.exists()):
            return
        text = self.parser.dump(self.config, "parser_mode", False)  # by position: releases differ in the name
        try:
            write_durably(self._file, lambda file: file.write(text.encode()))
        except OSError as error:
            raise _cannot_be_written(str(self._file.parent), error.strerror or str(error)) from error
        self._written = True


def _check_is_free(file: Path) -> None:
    """Raise `UsageError` if a config.yaml exists, of another run or of the user's own."""
    if file.with_name("metrics.csv").exists():
        raise holds_a_run(file.parent)
    if file.exists():
        raise UsageError(
            f"The run's folder must contain no config.yaml, got {file}. Use another folder for the logger, or --name."
        )


def _cannot_be_written(folder: str, why: str) -> UsageError:
    return UsageError(
        f"{folder} cannot be written ({why}), so nothing of the run would be kept; give another place for its folder, "
        "with --trainer.default_root_dir."
    )


def saved_settings(
    checkpoint: Mapping[str, Any], path: str, files: Sequence[str], typed: Sequence[str], command: str
) -> dict[str, Any]:
    """The settings that a checkpoint holds, for a command.

    Args:
        checkpoint: The checkpoint.
        path: Where it lies.
        files: The texts of the configurations that the user gave.
        typed: What the user typed.
        command: What they are for; all but "fit" do without those of the trainer and of the checkpoints.

    Raises:
        UsageError: They name code that is neither ours nor named by the user, so that loading a stranger's
            checkpoint runs none.
    """
    settings = _kept(checkpoint.get("config", {}))
    if command != "fit":
        settings = {key: value for key, value in settings.items() if KEPT[key] is None}
    given = {text for source in (*files, *(word.split("=", 1)[-1] for word in typed)) for text in _texts(_read(source))}
    for text in _texts({key: value for key, value in settings.items() if key in SECTIONS}):
        if re.search("[.:]|^/", text) and text not in given and not _is_ours(text):
            raise UsageError(
                f'{path} names "{text}", which may be code that is not of td3_lightning; if you trust it, give the '
                f"run's own configuration too, such as --config {config_of(Path(path))}."
            )
    return settings


def report_differences(config: Namespace, filed: Namespace, path: str, refilled: bool) -> None:
    """Says which settings the checkpoint and the files have otherwise, and whose are taken.

    Args:
        config: The settings, those of the checkpoint before those of the files.
        filed: The settings the other way round.
        path: Where the checkpoint lies.
        refilled: Whether the replay begins empty, so that the files' are taken.

    Raises:
        UsageError: They are for different environments.
    """
    held, wanted = (_kept(each.as_dict()) for each in (config, filed))
    env_id, wanted_id = held["data"]["env_id"], wanted["data"]["env_id"]
    if env_id != wanted_id:
        raise UsageError(
            f"{path} is of {env_id}, but the configuration is for {wanted_id}; give the "
            "checkpoint its own configuration, or type --data.env_id."
        )
    for settings in (held, wanted):  # without what is each start's own
        settings.pop("seed_everything", None)
        settings["data"].pop("empty_replay")
    taken, left = (wanted, held) if refilled else (held, wanted)
    said = ", ".join(_differences(taken, left))
    if said:
        rank_zero_only(say)(
            f"From the configuration, and not the checkpoint, as the replay begins empty: {said}."
            if refilled
            else f"From the checkpoint, and not the configuration: {said}; a flag changes it."
        )


def check_sizes(held: Mapping[str, Any], model: TD3) -> None:
    """Raises `UsageError` if a checkpoint's hyperparameters are of networks of another size than the model."""
    other = [
        f"{name} {held.get(name)} (here {model.hparams[name]})"
        for name in SIZES
        if held.get(name) != model.hparams[name]
    ]
    if other:
        raise UsageError(
            f"The checkpoint holds networks of another size: {', '.join(other)}; leave those settings to it, and "
            "give it the environment that it was trained in."
        )


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration that `KEPT` names, those that there are."""
    return {
        key: config[key] if names is None else {name: config[key][name] for name in names if name in config[key]}
        for key, names in KEPT.items()
        if key in config
    }


def _read(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _texts(settings: Any) -> Iterator[str]:
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping | list):
        for value in settings.values() if isinstance(settings, Mapping) else settings:
            yield from _texts(value)


def _is_ours(class_path: str) -> bool:
    packages = ("td3_lightning.", "gymnasium.wrappers.")
    found = pydoc.locate(class_path) if class_path.startswith(packages) else None
    # What it resolves to counts: a path can lead through our modules to what they import.
    return isinstance(found, type) and found.__module__.startswith(packages)


def _differences(taken: Mapping[str, Any], left: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """What was taken otherwise than it was left, setting by setting."""
    for key, value in taken.items():
        other = left.get(key)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _differences(value, other, f"{prefix}{key}.")
        elif value != other:
            yield f"{prefix}{key} {value} (not {other})"

"""Callback that saves the configuration beside the logs and in every checkpoint."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser, SaveConfigCallback
from lightning_utilities.core.rank_zero import WarningCache

from td3_lightning.atomic_files import atomic_write
from td3_lightning.cli.settings import kept, requires_config
from td3_lightning.errors import UsageError
from td3_lightning.reporting.run_dir import continues_in, run_exists_error


class SaveConfig(SaveConfigCallback):
    """Save the configuration beside the logs and in every checkpoint, without the settings of a single start."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace) -> None:
        config = config.clone()
        config.ckpt_path, config.data.empty_replay = None, False
        super().__init__(parser, config)
        self._file: Path | None = None  # set when the run has begun
        self._written = False
        self.is_required = False  # by `test`, because the settings name code, which a checkpoint must not import
        self._warnings = WarningCache()

    @cached_property
    def text(self) -> str:
        """Return the content of config.yaml."""
        # Positional arguments, because their names depend on the release of jsonargparse.
        return str(self.parser.dump(self.config, "parser_mode", False))

    @cached_property
    def stored(self) -> dict[str, Any]:
        """Return the settings that a resumed run keeps, as plain Python values."""
        return kept(yaml.safe_load(self.text))

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Do nothing, because a run that cannot begin must not create a folder."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check before the warm-up that config.yaml can be written and does not exist.

        Raises:
            UsageError: The folder cannot be used.
        """
        self.is_required = requires_config(self.stored)
        log_dir = trainer.log_dir if trainer.loggers else None  # broadcast by Lightning
        if log_dir is None:
            return
        folder = Path(log_dir).absolute()
        self._file = folder / "config.yaml"
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            raise _not_writable(str(folder), f"no write permission for {there}")
        is_new = trainer.is_global_zero and not continues_in(trainer, folder)
        if is_new and self._file.exists():  # of another run, or of the user
            raise run_exists_error(folder)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write config.yaml, since the run has begun. Raise `UsageError` if it cannot be written."""
        try:
            self._write(trainer)
        except OSError as error:
            raise _not_writable(os.path.dirname(str(self._file)), error.strerror or str(error)) from error

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the settings that a resumed run keeps.

        Write config.yaml if it is missing: the warm-up failed, or the folder was deleted during the run. Warn if it
        cannot be written, because an exception on rank 0 alone would leave the other ranks in a collective operation.
        """
        try:
            self._write(trainer)
        except OSError as error:
            self._warnings.warn(f"Cannot write {self._file} ({error.strerror or error}). The run continues.")
        checkpoint["config"] = self.stored

    def _write(self, trainer: L.Trainer) -> None:
        if self._file is None or not trainer.is_global_zero or (self._written and self._file.exists()):
            return
        atomic_write(self._file, lambda file: file.write(self.text.encode()))
        self._written = True


def _not_writable(folder: str, why: str) -> UsageError:
    fix = "Use another folder with --trainer.default_root_dir."
    return UsageError(f"The run folder {folder} must be writable, got {why}. {fix}")

"""Command line on LightningCLI: `fit`, `validate`, `test` and the commands of `cli/trainer.py`."""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse.typing import restricted_number_type
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from td3_lightning import checkpointing
from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.io import AtomicCheckpointIO
from td3_lightning.checkpointing.last import LastCheckpoint
from td3_lightning.cli.commands import COMMANDS
from td3_lightning.cli.error_messages import explain_parser_error
from td3_lightning.cli.help import RUN
from td3_lightning.cli.precedence import Precedence, runs_folder
from td3_lightning.cli.save_config import SaveConfig
from td3_lightning.cli.settings import DEFAULT, KEY
from td3_lightning.cli.trainer import Trainer, check_pixel_encoder, check_processes, check_trainer
from td3_lightning.errors import ExitOnSignal, UsageError, one_line
from td3_lightning.reporting.console import echo
from td3_lightning.reporting.learning_curve import Curve
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.paths import make_absolute
from td3_lightning.reporting.progress_bar import Progress
from td3_lightning.reporting.summary import Results, RunSummary, command_lines, start_lines
from td3_lightning.training.collector import Collector
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.run_checks import check_callback, check_launcher

Seed = restricted_number_type("Seed", int, [(">=", 0), ("<", 2**32)], docstring="An integer from 0 to 2**32 - 1.")

TRAINER_DEFAULTS = {
    "devices": 1,  # each further device collects its own experience, so it must be requested
    "max_epochs": 100,
    "num_sanity_val_steps": 0,
    "enable_model_summary": False,
}


class CommandLine(LightningCLI):
    """Run one command. `Precedence` decides the settings, and this class creates the objects and runs the Trainer.

    Args:
        args: Words after the name of the program.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self.start = Path.cwd()
        self.typed = args[0]
        self.sources = Precedence(args[0], args[1:], self.start)
        self.checkpoint = self.sources.checkpoint
        accelerator = "cpu" if torch.backends.mps.is_available() else "auto"  # mps has no float64
        try:
            super().__init__(
                self.sources.agent_class,
                ReplayData,
                trainer_class=Trainer,
                trainer_defaults={"accelerator": accelerator, **TRAINER_DEFAULTS},
                parser_kwargs={
                    "description": "Train and use TD3 and TD7 agents. See also `curves --help` and `sweep --help`.",
                    "prog": "td3-lightning",
                    "allow_abbrev": False,  # an abbreviation could be a misspelled flag
                    "exit_on_error": False,  # errors become exceptions, and each of them one sentence
                },
                args=list(args),
                auto_configure_optimizers=False,
                load_from_checkpoint_support=False,  # the hyperparameters contain no class paths
            )
        except ExitOnSignal:
            self._print_resume_command()
            raise

    # Commands and settings.

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # Lightning's is a static method
        """Return the command with the parameters that are not settings.

        Adding the settings of another command to the parser takes longer than creating the networks.
        """
        return {self.typed: COMMANDS[self.typed]}

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the settings of the run."""
        parser.add_argument("--name", type=str, default="default", help=RUN["name"][1])
        parser.add_argument("--seed_everything", type=Seed, default=0, help=RUN["seed_everything"][1])
        parser.add_argument("--ckpt_path", type=str | None, help=RUN["ckpt_path"][1])

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the settings of the objects in the order of `--help`. Lightning would add the Trainer first."""
        parser.add_lightning_class_args(self.sources.agent_class, "model")
        parser.add_argument(f"--{KEY}", type=str, default=DEFAULT, help=RUN["model"][1])
        parser.add_lightning_class_args(ReplayData, "data")
        parser.add_lightning_class_args(Collector, "collector")
        parser.add_lightning_class_args(BestCheckpoint, "checkpoint")
        parser.add_lightning_class_args(Trainer, "trainer")
        parser.set_defaults({f"trainer.{name}": value for name, value in self.trainer_defaults.items()})

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link the sizes of the environment to the model."""
        self.command_parser = parser
        for name in ("obs_dim", "action_low", "action_high"):
            parser.link_arguments(f"data.{name}", f"model.{name}", apply_on="instantiate")

    def parse_arguments(  # type: ignore[override]  # the words are always a list
        self, parser: LightningArgumentParser, args: list[str]
    ) -> None:
        """Parse the words. An invalid word raises `UsageError`."""
        try:
            self.config = self.sources.decide(parser)
        except argparse.ArgumentError as error:
            known = self.command_parser.get_defaults(skip_validation=True).keys()
            raise UsageError(explain_parser_error(str(error), known)) from error

    def _parse_ckpt_path(self) -> None:
        """Replace Lightning's method, because `Precedence` has merged the settings of the checkpoint."""

    # Objects.

    def before_instantiate_classes(self) -> None:
        """Require a checkpoint if the command loads one, and make all paths absolute."""
        self.settings = self.config[self.subcommand]
        self.given = self.settings.clone()  # config.yaml keeps the paths as the user wrote them
        self.settings.model.pop("class_path")  # the parser was made for the class
        make_absolute(self.settings)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Create the Trainer with the callbacks, loggers and plugins of the command."""
        self.objects = self.config_init[self.subcommand]
        check_trainer(settings := {**self.objects.trainer, **kwargs})
        settings["callbacks"] = self._callbacks(settings)
        settings["logger"] = self._loggers(settings)
        plugins = _as_list(settings["plugins"])
        has_io = any(isinstance(plugin, CheckpointIO) for plugin in plugins)
        settings["plugins"] = plugins if has_io else [*plugins, AtomicCheckpointIO(self.sources.already_read)]
        try:
            trainer = Trainer(**settings)
        except (MisconfigurationException, ImportError, ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"Lightning does not accept the trainer settings: {one_line(error)}") from error
        trainer.start = self.start
        return trainer

    def _loggers(self, settings: Mapping[str, Any]) -> list[Logger] | Logger | bool:
        """Return the loggers of the run. The folder of the first one, a RunLogger, is the folder of the run."""
        given = settings["logger"]
        if self.subcommand != "fit":
            return False if given in (None, True) else given
        if given is False or given == []:
            return False
        own = [] if given in (None, True) else _as_list(given)
        first = next((logger for logger in own if isinstance(logger, RunLogger)), None)
        run = self.sources.run_dir
        if first is None and run is not None and not self.objects.data.empty_replay:  # a new stage is a new run
            first = RunLogger(str(run.parent.parent), run.parent.name, run.name)
        first = first or RunLogger(str(runs_folder(settings["default_root_dir"])), self.objects.name)
        return [first, *(logger for logger in own if logger is not first)]

    def _callbacks(self, settings: Mapping[str, Any]) -> list[Callback]:
        own = _as_list(settings["callbacks"])
        for callback in own:
            check_callback(callback)
        no_bar = settings["enable_progress_bar"] is False or any(isinstance(each, ProgressBar) for each in own)
        progress = [] if no_bar else [Progress()]
        config = SaveConfig(self.command_parser, self.given)
        if self.subcommand != "fit":
            return [*progress, Results(), config, *own]
        is_saved = settings["enable_checkpointing"] is not False
        best = self.objects.checkpoint if is_saved else None
        collector = self.objects.collector
        curves = [] if any(isinstance(each, Curve) for each in own) else [Curve()]
        return checkpointing.callbacks(collector, best, [*progress, *own], records=[*curves, config])

    def after_instantiate_classes(self) -> None:
        """Raise errors that would otherwise appear after the run has created its folder."""
        check_launcher(self.trainer)
        check_processes(self.trainer)
        check_pixel_encoder(self.datamodule, self.model)
        if self.subcommand == "fit":
            self.datamodule.setup("fit")
        elif self.subcommand not in ("validate", "test") and self.checkpoint is not None:
            self.model.on_load_checkpoint(self.checkpoint)
            self.model.load_state_dict(self.checkpoint["state_dict"])
            self.model.eval()

    # The run.

    @rank_zero_only
    def before_fit(self) -> None:
        """Print a description of the run."""
        self._fit_start = time.monotonic()
        seed = str(self.settings.seed_everything)
        for line in start_lines(self.trainer, self.model, self.datamodule, seed, self.start):
            echo(line)

    @rank_zero_only
    def after_fit(self) -> None:
        """Print a summary and the next commands. Explain why a complete run was not trained."""
        if self.checkpoint is not None and self.model.updates == self.checkpoint["clocks"]["updates"]:
            after = f"{self.model.clock:,} {self.model.clock_name}"
            fix = "Increase --trainer.max_epochs, or --trainer.max_time, which counts all starts of the run."
            echo(f"The run was complete after {after}, so nothing was trained. {fix}")
        summary = self._summary()
        seconds = time.monotonic() - self._fit_start
        for line in (*summary.lines(seconds), *summary.next_lines(self.datamodule, self.trainer)):
            echo(line)

    @rank_zero_only
    def _print_resume_command(self) -> None:
        """Print how to resume a run that a signal, for example Ctrl-C, has stopped."""
        has_begun = hasattr(self, "_fit_start")  # otherwise the summary would create the folder of the run
        resume = self._summary().resume_command() if has_begun else None
        if resume is not None:
            for line in command_lines("resume", resume):
                echo(line)

    def _summary(self) -> RunSummary:
        """Return the summary of the run, with its files."""
        trainer: Any = self.trainer
        folder = next((Path(each.log_dir) for each in trainer.loggers if isinstance(each, RunLogger)), None)
        keepers = trainer.checkpoint_callbacks
        last = next((_path(each.last_model_path) for each in keepers if isinstance(each, LastCheckpoint)), None)
        best = next((each for each in keepers if isinstance(each, BestCheckpoint)), None)
        with_config = any(each.is_required for each in trainer.callbacks if isinstance(each, SaveConfig))
        if best is None:
            return RunSummary(folder, last, None, self.start, with_config)
        score = None if best.best_model_score is None else float(best.best_model_score)
        return RunSummary(folder, last, _path(best.best_model_path), self.start, with_config, str(best.monitor), score)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs: dict[str, Any] = super()._prepare_subcommand_kwargs(subcommand)
        if subcommand in ("fit", "validate", "test"):
            kwargs["ckpt_path"] = self.settings.ckpt_path
        if subcommand in ("validate", "test"):
            kwargs["verbose"] = False  # the callback Results prints the table
        return kwargs | ({"checkpoint": self.checkpoint} if subcommand == "export" else {})


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _path(text: str) -> Path | None:
    """Return the path of a checkpoint. None if it was not written, for example because the disk is full."""
    return Path(text) if text and Path(text).exists() else None

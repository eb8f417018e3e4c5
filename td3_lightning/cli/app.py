"""The command line: `fit`, `validate`, `test`, `record`, `robustness`, `export` and `import`."""

import argparse
import ctypes
import logging
import os
import platform
import re
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from jsonargparse.typing import restricted_number_type
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    Callback,
    ProgressBar,
)
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers.logger import DummyLogger, Logger
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.utilities import rank_zero_only

from td3_lightning import __version__, checkpointing
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.io import AtomicCheckpointIO
from td3_lightning.cli.array_arguments import register_array_arguments
from td3_lightning.cli.checks import (
    check_callbacks,
    check_epochs,
    check_own_stage,
    check_stage_before,
    check_trainer,
    has_name,
)
from td3_lightning.cli.config_files import as_yaml, find_config, without_empty_sections
from td3_lightning.cli.error_messages import exit_code, explain_parser_error, user_message
from td3_lightning.cli.parent import name_launcher, watch_parent
from td3_lightning.cli.rendezvous import Rendezvous, identity
from td3_lightning.cli.save_config import SaveConfig
from td3_lightning.cli.settings import check_sizes, report_differences, saved_settings
from td3_lightning.cli.stage import find_checkpoint, is_name
from td3_lightning.cli.suggestions import check_time_limit
from td3_lightning.cli.suggestions import command as closest_command
from td3_lightning.cli.trainer import NullProfiler, Trainer
from td3_lightning.errors import UsageError, one_line
from td3_lightning.fast.training_loop import FastTrainingLoop
from td3_lightning.reporting.console import echo, make_streams_tolerant
from td3_lightning.reporting.learning_curve import Curve
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.paths import expand, make_absolute, shown
from td3_lightning.reporting.progress_bar import Progress
from td3_lightning.reporting.results_table import Results
from td3_lightning.reporting.run_dir import config_of, run_dir_of
from td3_lightning.serialization.checkpoint_file import check_format, read_checkpoint
from td3_lightning.training.collector import Collector
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.launcher import check_launcher

Seed = restricted_number_type("Seed", int, [(">=", 0), ("<", 2**32)], docstring="A whole number from 0 to 2**32 - 1.")


# Commands that several processes run together.
COMMON = ("fit", "validate", "test")


# Said by Lightning at every start, with nothing in it for a user of this package.
SUPPRESSED_MESSAGES = re.compile(
    r"[GT]PU available|💡 Tip|LOCAL_RANK|Seed set to|Restoring states from|`weights_only` was not|"
    r"Found current_model_state|You're using the WeightAveraging callback"
)


WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)`",
    r"The number of training batches .* is smaller than the logging interval",
    r"Checkpoint directory .* exists and is not empty",  # it does, where a run goes on
    r"The dirpath has changed from",  # a resumed run has its own folder
    r"Be aware that when using `ckpt_path`, callbacks",
    r"It is recommended to use `self.log\(.*sync_dist",  # every process plays the same episodes
    r"The checkpoint was not created with WeightAveraging",  # where a stage with a mean begins
)


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        args: What was typed after the program's name; None takes it from `sys.argv`.

    Returns:
        The exit code: 2 after a mistake of the user's, 1 after a fault of the environment's or the learner's in
        the run; one sentence on stderr tells which. A signal ends the process with its own, as do closed pipes.
    """
    watch_parent()
    tune_malloc()
    _quieten()
    make_streams_tolerant()
    words = sys.argv[1:] if args is None else args
    if "--version" in words:
        echo(f"td3-lightning {__version__}")
        return 0
    try:
        CommandLine(words)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        if not stdout_closed():
            raise
        return 128 + signal.SIGPIPE
    except SystemExit as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):  # Lightning's own ending, outside of the training
            return 130
        raise
    except Exception as error:
        said = user_message(error)
        if said is None:
            raise
        print(said, file=sys.stderr)
        return exit_code(error)
    return 0


def stdout_closed() -> bool:
    """Whether what is printed goes to a program that has ended, such as `head`; if so, no more is printed."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def tune_malloc() -> None:
    """Keeps glibc from handing every large temporary back to the system and faulting it in again at each update."""
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold, most = -1, -3, 256 * 2**20
        ctypes.CDLL(None).mallopt(mmap_threshold, most)
        ctypes.CDLL(None).mallopt(trim_threshold, most)


def _quieten() -> None:
    for name in ("lightning.pytorch", "lightning.fabric"):
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(_is_news)
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message)


def _is_news(record: logging.LogRecord) -> bool:
    return not SUPPRESSED_MESSAGES.search(record.getMessage())


class CommandLine(LightningCLI):
    """Lightning's command line for TD3, its data and its collector.

    Values come from the defaults, the configuration files in their order, the checkpoint, and what was typed; the
    later ones win, wherever they stand on the line. Where the replay was typed to begin empty, the files come after
    the checkpoint: a new stage of training may differ from the last. A file may name the checkpoint of the stage before
    itself, and an empty replay.

    Args:
        args: What was typed after the program's name.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self.checkpoint: dict[str, Any] | None = None
        self.own_folder: Path | None = None  # of the run that goes on in it
        self.start = Path.cwd()
        self.typed = args[0] if args else ""
        self.rendezvous = Rendezvous.of_launcher() if self.typed in COMMON else None
        with self.rendezvous.guard() if self.rendezvous else nullcontext():
            self._run(args)

    def _run(self, args: Sequence[str]) -> None:
        super().__init__(
            TD3,
            ReplayData,
            trainer_class=Trainer,
            trainer_defaults={
                "accelerator": "cpu" if torch.backends.mps.is_available() else "auto",  # mps has no float64
                "devices": 1,  # several are several agents' worth of experience: asked for, not found
                "max_epochs": 100,
                "num_sanity_val_steps": 0,
                "enable_model_summary": False,
            },
            parser_kwargs={
                "description": "TD3 on PyTorch Lightning.",
                "prog": "td3-lightning",
                "allow_abbrev": False,  # a mistyped flag is not a guess
                "exit_on_error": False,  # mistakes become exceptions, and those one sentence
            },
            args=list(args),
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,  # the module's hyperparameters are plain data as they are
        )

    # What there is to set.

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # Lightning's is a static method
        """The commands, and which of their methods' arguments are no settings; the one that was typed, if one was.

        To look up the settings of each takes longer than to make the networks.
        """
        ours = {"model", "datamodule", "ckpt_path", "weights_only", "verbose"}
        commands = {
            "fit": ours | {"train_dataloaders", "val_dataloaders"},
            "validate": ours | {"dataloaders"},
            "test": ours | {"dataloaders"},
            "record": ours,
            "robustness": ours,
            "export": ours,
            "import": ours,
        }
        return {self.typed: commands[self.typed]} if self.typed in commands else commands

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds what belongs to a run as a whole."""
        parser.add_argument("--name", default="default", help="Folder in lightning_logs; the first --config's name.")
        parser.add_argument("--seed_everything", type=Seed, default=0, help="Seed of all that is drawn at random.")
        parser.add_argument("--ckpt_path", type=str | None, help="Checkpoint to go on from, or to judge and to show.")

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the collector and the checkpoints, and gives the environment's sizes to the model."""
        register_array_arguments()
        parser.add_lightning_class_args(Collector, "collector")
        parser.add_lightning_class_args(BestCheckpoint, "checkpoint")
        for name in ("obs_dim", "action_low", "action_high"):
            parser.link_arguments(f"data.{name}", f"model.{name}", apply_on="instantiate")

    # What was set.

    def parse_arguments(  # type: ignore[override]  # they are always a list
        self, parser: LightningArgumentParser, args: list[str]
    ) -> None:
        """Reads the line; a mistake on it becomes a UsageError."""
        try:
            if args[:1] in (["-h"], ["--help"]):
                parser.parse_args(args)
            self.config = self._parse(_command(args, self.subcommands()), args[1:])
        except argparse.ArgumentError as error:
            subparser = self._subcommand_parsers[args[0]]
            raise UsageError(
                explain_parser_error(str(error), subparser.get_defaults(skip_validation=True).keys(), args)
            ) from error

    def _parse_ckpt_path(self) -> None:
        """Leaves the checkpoint's settings where `_parse` put them: below what was typed."""

    def _parse(self, command: str, words: list[str]) -> Namespace:
        """Puts the files first, whatever the order on the line, and the checkpoint's settings next."""
        line = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        line.add_argument("-c", "--config", action="append", default=[])
        line.add_argument("--ckpt_path")
        named, typed = line.parse_known_args(words)
        files = [find_config(name) for name in named.config]
        configs = [f"--config={without_empty_sections(file)}" for file in files]
        configs = [f"--name={files[0].stem}", *configs] if files else []  # a file's own name wins
        printing = [word for word in typed if word.startswith("--print_config")]  # it ends where it is parsed
        typed = [word for word in typed if word not in printing]
        path = named.ckpt_path
        if path is None or is_name(path):
            self._require_checkpoint(command, path or files or {"-h", "--help", "--print_config"}.intersection(words))
            anything = ["--data.env_id=unknown"] if path or printing else []  # the checkpoint will say which
            config = self.parser.parse_args([command, *anything, *configs, *typed])
            is_stage = path is None and config[command].data.empty_replay
            path = path or config[command].ckpt_path
            if path is None or (is_stage and command != "fit"):
                return self.parser.parse_args([command, *configs, *typed, *printing]) if printing else config
            try:
                path = expand("ckpt_path", find_checkpoint(path, _runs(config[command].trainer), config[command].name))
                if is_stage:
                    check_stage_before(Path(path), files)
            except UsageError:
                if not printing:
                    raise
                return self.parser.parse_args([command, *configs, *typed, *printing])
            if is_stage:
                typed = ["--data.empty_replay=true", *typed]
        path = expand("ckpt_path", path)
        self.checkpoint = read_checkpoint(path)
        if command == "fit":
            check_format(self.checkpoint, path)
        if command == "fit" and not files:
            raise UsageError(
                f"fit goes on from {path} with a run's other settings too; add its configuration, such as --config "
                f"{config_of(Path(path))}."
            )
        settings = saved_settings(self.checkpoint, path, [file.read_text() for file in files], typed, command)
        saved, typed = f"--config={as_yaml(settings)}", [f"--ckpt_path={path}", *typed]
        config = self.parser.parse_args([command, *configs, saved, *typed])
        refilled = bool(files) and config[command].data.empty_replay
        if printing:
            order = [saved, *configs] if refilled else [*configs, saved]
            self.parser.parse_args([command, *order, *typed, *printing])
        self._find_own_folder(Path(path), typed, config[command].name)
        if files:
            filed = self.parser.parse_args([command, saved, *configs, *typed])
            if filed[command].data.empty_replay and not refilled and command == "fit":
                check_own_stage(Path(path), config[command].name, files)
            if refilled and command == "fit":
                rank_zero_only(echo)(f"Starting this stage from {shown(path, self.start)}.")
            report_differences(config[command], filed[command], path, refilled)
            config = filed if refilled else config
        return config

    def _find_own_folder(self, checkpoint: Path, typed: list[str], name: str) -> None:
        """Has the run go on where the checkpoint lies, unless another name was typed: that is a new run."""
        named, run = any(word.split("=")[0] == "--name" for word in typed), run_dir_of(checkpoint)
        self.own_folder = run if not named or has_name(run, name) else None

    # What becomes of it.

    def before_instantiate_classes(self) -> None:
        """Require a checkpoint where a command needs one, and make all paths absolute."""
        self._require_checkpoint(str(self.subcommand), self.checkpoint)
        for name in ("env_kwargs", "train_kwargs"):
            check_time_limit(f"data.{name}", self._get(self.config, "data")[name])
        config = self.config[self.subcommand]
        self.given = config.clone()  # config.yaml keeps the paths as the user wrote them
        make_absolute(config)

    @staticmethod
    def _require_checkpoint(command: str, given: object) -> None:
        if command not in ("fit", "import") and not given:
            raise UsageError(
                f"{command} requires --ckpt_path, for example lightning_logs/car/version_0/checkpoints/last.ckpt."
            )

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Makes the Trainer, with what a run has besides its settings."""
        settings = {**self._get(self.config_init, "trainer"), **kwargs}
        check_trainer(settings)
        settings["callbacks"] = self._callbacks(settings)
        settings["logger"] = self._loggers(settings)
        settings["profiler"] = settings["profiler"] or NullProfiler()
        plugins = _listed(settings["plugins"])
        if any(isinstance(plugin, AsyncCheckpointIO) for plugin in plugins):
            raise UsageError(
                "trainer.plugins has AsyncCheckpointIO, with which last.ckpt would be said to be there before it is; "
                "leave it out, as a save writes the new rows of the replay only."
            )
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            settings["plugins"] = [*plugins, AtomicCheckpointIO()]
        try:
            trainer = Trainer(**settings)
        except (MisconfigurationException, ModuleNotFoundError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"Lightning's Trainer does not take these settings: {one_line(error)}") from error
        trainer.start = self.start
        FastTrainingLoop.install(trainer)
        return trainer

    def _loggers(self, settings: Mapping[str, Any]) -> list[Logger] | Logger | bool:
        """List the loggers of a run: the RunLogger, whose folder is the run's folder, and then the user's loggers."""
        given = settings["logger"]
        if self.subcommand != "fit":
            return False if given in (None, True) else given
        if given is False or given == []:
            return False
        own = [] if given in (None, True) else _listed(given)
        first = next((each for each in own if isinstance(each, RunLogger)), None) or self._logger(_runs(settings))
        return [first, *(each for each in own if each is not first)]

    def _logger(self, runs: Path) -> RunLogger:
        """Make the logger of a new run, or of the run that the checkpoint belongs to if its replay continues too."""
        run = self.own_folder
        if run is not None and not self._get(self.config_init, "data").empty_replay:
            return RunLogger(str(run.parent.parent), run.parent.name, run.name)
        return RunLogger(str(runs), self._get(self.config_init, "name"))

    def _callbacks(self, settings: Mapping[str, Any]) -> list[Callback]:
        own = _listed(settings["callbacks"])
        check_callbacks(own)
        no_bar = settings["enable_progress_bar"] is False or any(isinstance(each, ProgressBar) for each in own)
        progress = [] if no_bar else [Progress()]
        config = SaveConfig(self._parser(self.subcommand), self.given)
        if self.subcommand != "fit":
            return [*progress, Results(), config, *own]
        is_saved = settings["enable_checkpointing"] is not False
        best = self._get(self.config_init, "checkpoint") if is_saved else None
        collector = self._get(self.config_init, "collector")
        return checkpointing.callbacks(collector, best, [*progress, *own], records=[Curve(), config])

    def after_instantiate_classes(self) -> None:
        """Finds what would fail later, when the run has made its folder."""
        check_launcher(self.trainer)
        if self.datamodule.pixels is not None and self.model.hparams["encoder"] is None:
            raise UsageError(
                "data.pixels came, but no network that takes pixels; add model.encoder, such as "
                "td3_lightning.Convolutions."
            )
        if self.subcommand == "fit":
            if self.checkpoint is not None:
                if self.trainer.fast_dev_run:  # type: ignore[attr-defined]  # Lightning sets it without a type
                    raise UsageError(
                        "trainer.fast_dev_run tries how a run begins, but a checkpoint came; leave one of them out."
                    )
                check_epochs(self.trainer.max_epochs, self.checkpoint, self.datamodule.empty_replay)
            self.datamodule.setup("fit")
        if self.checkpoint is not None:
            check_sizes(self.checkpoint, self.model)
        self._meet()

    def _meet(self) -> None:
        """Wait for the processes that train with this one, before torch does."""
        if self.trainer.world_size > 1:
            name_launcher()
        if self.rendezvous is not None and self.trainer.world_size > 1:
            model = self._get(self.config, "model").as_dict()
            self.rendezvous.agree({"ckpt_path": identity(self._get(self.config, "ckpt_path")), "model": model})

    @rank_zero_only
    def before_fit(self) -> None:
        """Says what is about to run."""
        data, model, replay = self.datamodule, self.model, self.datamodule.replay
        widths = "-".join(str(width) for width in model.hparams["hidden_dims"]) or "no hidden layers"
        weights = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        megabytes = replay.capacity * replay.transition_bytes / 1e6
        echo(f"environment  {data.env_id}: {data.obs_dim} numbers in, {len(data.action_low)} out")
        echo(f"networks     {widths}, an actor and {model.hparams['num_critics']} critics: {weights:,} weights")
        echo(f"replay       {replay.capacity:,} rows of {replay.transition_bytes} bytes: {megabytes:,.1f} MB when full")
        echo(f"seed         {self._seed()}")
        loggers = [each for each in self.trainer.loggers if not isinstance(each, DummyLogger)]
        folders = [shown(each.log_dir, self.start) for each in loggers if isinstance(each, RunLogger)]
        others = [type(each).__name__ for each in loggers if not isinstance(each, RunLogger)]
        echo(f"logs         {', '.join(folders + others) or 'none'}")

    def _seed(self) -> str:
        seed = self._get(self.config, "seed_everything")
        saved = seed if self.checkpoint is None else self.checkpoint.get("config", {}).get("seed_everything", seed)
        return f"{seed}" if seed == saved else f"{seed}, but the random numbers go on from the checkpoint ({saved})"

    @rank_zero_only
    def after_fit(self) -> None:
        """Says where the best is, and why a run that was over trained no more."""
        if self.checkpoint is not None and self.model.updates == self.checkpoint["clocks"]["updates"]:
            echo(
                f"The run was over after {self.model.env_steps:,} env_steps, so nothing was trained; a larger "
                "--trainer.max_epochs goes on, or a configuration that asks for more where EarlyStopping ended it, or "
                "--trainer.max_time, which counts the time of all attempts."
            )
        for best in self.trainer.checkpoint_callbacks:
            if isinstance(best, BestCheckpoint) and best.best_model_path:
                echo(f"best         {shown(best.best_model_path, self.start)}")

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs: dict[str, Any] = super()._prepare_subcommand_kwargs(subcommand)
        kwargs["ckpt_path"] = self._get(self.config, "ckpt_path")
        if subcommand in ("validate", "test"):
            kwargs["verbose"] = False  # the callback Results prints the table
        return kwargs


def _runs(trainer: Mapping[str, Any]) -> Path:
    """Name the folder of all runs."""
    return Path(expand("trainer.default_root_dir", trainer["default_root_dir"] or ""), "lightning_logs")


def _command(args: list[str], commands: Mapping[str, Any]) -> str:
    """Return the first word, if it is a command."""
    if not args:
        raise UsageError(f"A command is missing; begin with one of {', '.join(commands)}, or --help.")
    if args[0] not in commands:
        raise UsageError(f'"{args[0]}" is no command; {closest_command(args[0], commands)}')
    return args[0]


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]

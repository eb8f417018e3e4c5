"""Precedence of the settings: defaults, configuration files, checkpoint, flags."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities import rank_zero_only

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.cli.config_files import read_config
from td3_lightning.cli.settings import AGENTS, DEFAULT, KEY, agent_class, agent_path, saved_settings
from td3_lightning.errors import UsageError
from td3_lightning.reporting.console import echo
from td3_lightning.reporting.paths import expand, shown
from td3_lightning.reporting.run_dir import config_of, newest_last, run_dir_of
from td3_lightning.serialization.checkpoint_file import FileVersion, file_version, read_checkpoint

# Settings that are needed before the parser exists: they name the class of the agent and the checkpoint.
EARLY = (KEY, "ckpt_path", "name", "trainer.default_root_dir", "data.empty_replay")
OF_EACH_START = ("seed_everything", "data.empty_replay")
RUNS = "lightning_logs"  # folder of all runs
PREFIX = "last:"  # of a ckpt_path, followed by the name of a run


class Precedence:
    """Decide the settings of a command, its checkpoint and the folder of the run that it resumes.

    Later sources override earlier ones, in any order on the command line: defaults, configuration files in their order,
    the checkpoint, flags. If the replay starts empty, a new stage begins and the files override the checkpoint.

    Args:
        command: Name of the command.
        words: Words after the command.
        start: Working directory of the command.

    Attributes:
        files: The configuration files.
        checkpoint: The checkpoint that the command loads, None without one.
        already_read: The version of its file, and the checkpoint.
        run_dir: Folder of the run that `fit` resumes, None for a new run.
        agent: Import path of the agent.

    Raises:
        UsageError: A file or a checkpoint cannot be used, or no agent has the given name.
        argparse.ArgumentError: A flag has no value.
    """

    def __init__(self, command: str, words: Sequence[str], start: Path) -> None:
        self._command, self._start = command, start
        self._early, typed = parse_early_flags(words)
        self.files = [read_config(name) for name in self._early.config]
        # Parsing ends at these words. `help.py` answers --help.
        self._printing = ["--help" if word == "--help-trainer" else word for word in typed if is_printing(word)]
        early = [f"--{key}={value}" for key, value in vars(self._early).items() if value is not None and key in EARLY]
        self._typed = [*early, *(word for word in typed if not is_printing(word))]
        self.checkpoint: dict[str, Any] | None = None
        self.already_read: tuple[FileVersion, dict[str, Any]] | None = None
        self.run_dir: Path | None = None
        self._path = self._find_checkpoint()
        if self._path is not None:
            self.already_read = file_version(self._path), read_checkpoint(self._path)
            self.checkpoint = self.already_read[1]
        self.agent = self._agent()

    @property
    def agent_class(self) -> type[TD3]:
        """Class of the agent."""
        return agent_class(self.agent) or TD3

    def decide(self, parser: LightningArgumentParser) -> Namespace:
        """Return the configuration of the command. End the process after `--print_config` or `--help`.

        Args:
            parser: Parser of the command line, with the settings of the agent.

        Raises:
            UsageError: The files, the checkpoint and the flags do not fit together.
        """
        files = [file.content for file in self.files]
        if self._path is None or self.checkpoint is None:
            if self._printing:
                self._parse(parser, files, self._printing)
            if self._command not in ("fit", "import", "check-env"):
                example = "for example lightning_logs/car/version_0/checkpoints/last.ckpt"
                raise UsageError(f"{self._command} requires --ckpt_path, {example}.")
            return self._parse(parser, files)
        if self._command == "fit" and not self.files:
            fix = f"Use --config {config_of(Path(self._path))}."
            raise UsageError(f"fit requires --config to resume from {self._path}, got none. {fix}")
        saved = saved_settings(self.checkpoint, self._path, files, self._typed, self._command)
        resumed = self._parse(parser, [*files, saved])
        is_stage = bool(self.files) and resumed[self._command].data.empty_replay
        if self._printing:
            self._parse(parser, [saved, *files] if is_stage else [*files, saved], self._printing)
        run = run_dir_of(Path(self._path))  # resumed, unless the user typed another name for a new run
        self.run_dir = run if self._early.name is None or has_name(run, resumed[self._command].name) else None
        if not self.files:
            return resumed
        staged = self._parse(parser, [saved, *files])
        self._report(self._path, resumed[self._command], staged[self._command], is_stage)
        return staged if is_stage else resumed

    def _value(self, key: str) -> Any:
        """Return an early setting: of the flag, else of the last file that has it."""
        typed = vars(self._early)[key]
        found = [value for file in self.files for value in file.find(key)]
        return typed if typed is not None else found[-1] if found else None

    def _agent(self) -> str:
        """Return the agent that the user names, else that of the checkpoint, else TD3."""
        named = self._value(KEY)
        if self.checkpoint is None:
            return DEFAULT if named is None else agent_path(named)
        algorithm = self.checkpoint.get("algorithm", "TD3")
        held = next((each for each, kind in AGENTS.items() if kind.algorithm == algorithm), None)
        if held is None:
            raise UsageError(f"{self._path} must be of one of {', '.join(AGENTS)}, got {algorithm!r}. Use another.")
        path = held if named is None else agent_path(named)
        if getattr(agent_class(path), "algorithm", None) != algorithm:
            fix = f"Remove it, and use --config {config_of(Path(str(self._path)))}."
            raise UsageError(f"{KEY} must be {held}, as in {self._path}, got {path}. {fix}")
        return path

    def _find_checkpoint(self) -> str | None:
        """Return the checkpoint that a flag or a configuration file refers to, None without one."""
        named, is_typed = self._value("ckpt_path"), self._early.ckpt_path is not None
        by_name = named is not None and (named == "last" or named.startswith(PREFIX))
        if is_typed and not by_name:
            return expand("ckpt_path", named)
        is_stage = not is_typed and self._value("data.empty_replay") in (True, "true")
        if named is None or (is_stage and self._command != "fit"):
            return None
        try:
            own = str(self._value("name") or (self.files[0].path.stem if self.files else "default"))
            runs = runs_folder(self._value("trainer.default_root_dir"))
            name = own if named == "last" else named.removeprefix(PREFIX)
            path = expand("ckpt_path", str(newest_last(runs, name)) if by_name else named)
        except UsageError:
            if self._printing:  # the configuration can be printed before the previous stage is trained
                return None
            raise
        if is_stage:
            self._typed = ["--data.empty_replay=true", *self._typed]
        return path

    def _parse(
        self, parser: LightningArgumentParser, contents: Sequence[Mapping[str, Any]], printing: Sequence[str] = ()
    ) -> Namespace:
        """Parse a command line whose configuration files have the given contents. `printing` ends the process."""
        name = [f"--name={self.files[0].path.stem}"] if self.files else []  # a name in a file overrides it
        path = [] if self._path is None else [f"--ckpt_path={self._path}"]
        configs = [f"--config={yaml.safe_dump(content, sort_keys=False)}" for content in contents]
        own = [self._command, *name, *configs, *self._typed, *path, f"--{KEY}={self.agent}"]
        return parser.parse_args([*own, *printing])

    def _report(self, path: str, resumed: Namespace, staged: Namespace, is_stage: bool) -> None:
        """Report which settings of the checkpoint and of the files override the other ones.

        Raises:
            UsageError: The environments differ, or the checkpoint belongs to the stage before.
        """
        say = rank_zero_only(echo)
        if self._command == "fit" and is_stage:
            say(f"Starting this stage from {shown(path, self._start)}.")
        elif self._command == "fit" and staged.data.empty_replay:
            self._check_own_stage(Path(path), resumed.name)
        env_id, configured = resumed.data.env_id, staged.data.env_id
        if env_id != configured:
            raise UsageError(
                f"data.env_id must be {env_id}, as in {path}, got {configured}. Use the configuration of the "
                "checkpoint, or set --data.env_id to change the environment."
            )
        taken, left = (staged, resumed) if is_stage else (resumed, staged)
        values = [(name, value, left.get(name)) for name, value in taken.items() if name not in OF_EACH_START]
        changed = ", ".join(f"{name} {value} (not {other})" for name, value, other in values if value != other)
        if changed and is_stage:
            say(f"The new stage overrides settings of the checkpoint: {changed}.")
        elif changed:
            say(f"The checkpoint overrides settings of the configuration: {changed}. Use a flag to change a setting.")

    def _check_own_stage(self, checkpoint: Path, name: str) -> None:
        if not has_name(run_dir_of(checkpoint), name):
            files = " and ".join(str(file.path) for file in self.files)
            raise UsageError(
                f"{files} starts a new stage, so ckpt_path must belong to a run named {name}, got {checkpoint}. Use "
                "--data.empty_replay true to start the stage from it, or false to resume that run."
            )


def runs_folder(default_root_dir: str | None) -> Path:
    """Return the folder of all runs."""
    return Path(expand("trainer.default_root_dir", default_root_dir or "."), RUNS)


def has_name(run: Path | None, name: str) -> bool:
    """Return whether a run folder belongs to a run with this name. The folder of all runs may have been moved."""
    parts = (RUNS, *Path(name).parts)
    return run is not None and run.parent.parts[-len(parts) :] == parts


def is_printing(word: str) -> bool:
    """Return whether a flag prints settings instead of running the command."""
    return word.startswith("--print_config") or word == "--help-trainer"


def parse_early_flags(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the values of the flags that are needed before the parser exists, and the other words.

    Raises:
        argparse.ArgumentError: A flag has no value.
    """
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    flags.add_argument("-c", "--config", action="append", default=[])
    for key in EARLY:
        flags.add_argument(f"--{key}")
    full = [f"--{KEY}{word.removeprefix('--model')}" if word.split("=")[0] == "--model" else word for word in words]
    return flags.parse_known_args(full)

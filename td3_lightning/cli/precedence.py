"""Precedence of the settings: defaults, configuration files, checkpoint, flags."""

from argparse import ArgumentError
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities import rank_zero_only

from td3_lightning.cli.agent_class import FLAG, AgentClass
from td3_lightning.cli.checks import check_own_stage, check_stage_before, has_name, require_checkpoint
from td3_lightning.cli.config_files import SECTIONS, as_yaml, find_config, parse_file_flags, without_empty_sections
from td3_lightning.cli.differences import check_same_environment, differences
from td3_lightning.cli.settings import saved_settings
from td3_lightning.cli.stage import check_name, find_checkpoint, is_name, runs_folder
from td3_lightning.errors import UsageError
from td3_lightning.reporting.console import echo
from td3_lightning.reporting.paths import expand, shown
from td3_lightning.reporting.run_dir import config_of, run_dir_of
from td3_lightning.serialization.checkpoint_file import read_checkpoint


class Precedence:
    """Decide the settings of a command, its checkpoint and the folder of the run that it resumes.

    Later sources override earlier ones, in any order on the command line: defaults, configuration files in their order,
    the checkpoint, flags. If the replay starts empty, a new stage begins and the files override the checkpoint.

    Args:
        parser: Parser of the command line.
        command: Name of the command.
        words: Words after the command.
        start: Working directory of the command.
        agent: Class of the agent, for which the parser was made.

    Attributes:
        checkpoint: The checkpoint that the command loads, None without one.
        run_dir: Folder of the run that `fit` resumes, None for a new run.
    """

    def __init__(
        self, parser: LightningArgumentParser, command: str, words: list[str], start: Path, agent: AgentClass
    ) -> None:
        self._parser, self._command, self._start, self._agent = parser, command, start, agent
        named, typed = parse_file_flags(words)
        self._files = [find_config(name) for name in named.config]
        self._configs = [f"--config={without_empty_sections(file)}" for file in self._files]
        if self._files:  # a name in a file overrides the name of the file
            self._configs = [f"--name={self._files[0].stem}", *self._configs]
        self._printing = [word for word in typed if word.startswith("--print_config")]  # parsing ends there
        self._typed = [word for word in typed if word not in self._printing]
        self._typed_path: str | None = named.ckpt_path
        self._prints_help = not {"-h", "--help"}.isdisjoint(words)
        self.checkpoint: dict[str, Any] | None = None
        self.run_dir: Path | None = None

    def decide(self) -> Namespace:
        """Return the configuration of the command. End the process after `--print_config` or `--help`.

        Raises:
            UsageError: The files, the checkpoint and the flags do not fit together.
        """
        if self._typed_path is not None and not is_name(self._typed_path):
            return self._with_checkpoint(expand("ckpt_path", self._typed_path))
        given = self._typed_path or self._files or self._printing or self._prints_help
        require_checkpoint(self._command, given)
        # The environment may be in the checkpoint, which has not been found yet.
        unknown_env = ["--data.env_id=unknown"] if self._typed_path or self._printing else []
        config = self._parse(*unknown_env, *self._configs, *self._typed)
        path = self._find_checkpoint(config[self._command])
        if path is not None:
            return self._with_checkpoint(path)
        if self._printing:
            self._print(*self._configs, *self._typed)
        return config

    def _parse(self, *words: str) -> Namespace:
        agent = f"{FLAG}={self._agent.path}"  # not the parser's default, which --print_config=skip_default omits
        try:
            config = self._parser.parse_args([self._command, agent, *words])
        except UnicodeDecodeError as error:
            flags = {word.split("=")[0].removeprefix("--") for word in words}
            section = next((name for name in SECTIONS if name in flags), "A setting")
            raise ArgumentError(None, f'Parser key "{section}": {error}') from error
        check_name(config[self._command].name)
        return config

    def _print(self, *words: str) -> NoReturn:
        self._parse(*words, *self._printing)
        raise SystemExit(0)  # the parser has ended the process before

    def _find_checkpoint(self, config: Namespace) -> str | None:
        """Return the checkpoint that a name or a configuration file refers to, None without one."""
        is_stage = self._typed_path is None and config.data.empty_replay
        named = self._typed_path or config.ckpt_path
        if named is None or (is_stage and self._command != "fit"):
            return None
        try:
            runs = runs_folder(config.trainer.default_root_dir)
            path = expand("ckpt_path", find_checkpoint(named, runs, config.name))
            if is_stage:
                check_stage_before(Path(path), self._files)
        except UsageError:
            if self._printing:  # the configuration can be printed before the previous stage is trained
                return None
            raise
        if is_stage:
            self._typed = ["--data.empty_replay=true", *self._typed]
        return path

    def _with_checkpoint(self, path: str) -> Namespace:
        saved = self._read(path)
        typed = [f"--ckpt_path={path}", *self._typed]
        resumed = self._parse(*self._configs, saved, *typed)
        starts_stage = bool(self._files) and resumed[self._command].data.empty_replay
        if self._printing:
            self._print(*([saved, *self._configs] if starts_stage else [*self._configs, saved]), *typed)
        self._set_run_dir(Path(path), resumed[self._command].name)
        if not self._files:
            return resumed
        staged = self._parse(saved, *self._configs, *typed)
        if starts_stage:
            return self._start_stage(path, resumed, staged)
        return self._resume(path, resumed, staged)

    def _read(self, path: str) -> str:
        """Read the checkpoint, and return its settings as a flag."""
        self.checkpoint = read_checkpoint(path)
        self._agent.check(self.checkpoint, path)
        if self._command == "fit" and not self._files:
            fix = f"Use --config {config_of(Path(path))}."
            raise UsageError(f"fit requires --config to resume from {path}, got none. {fix}")
        texts = [file.read_text(encoding="utf-8") for file in self._files]
        return f"--config={as_yaml(saved_settings(self.checkpoint, path, texts, self._typed, self._command))}"

    def _set_run_dir(self, checkpoint: Path, name: str) -> None:
        """Resume in the folder of the checkpoint, unless the user typed another name for a new run."""
        is_named = any(word.split("=")[0] == "--name" for word in self._typed)
        run = run_dir_of(checkpoint)
        self.run_dir = run if not is_named or has_name(run, name) else None

    def _start_stage(self, path: str, resumed: Namespace, staged: Namespace) -> Namespace:
        """Take the settings of the files, and report what they change."""
        if self._command == "fit":
            rank_zero_only(echo)(f"Starting this stage from {shown(path, self._start)}.")
        check_same_environment(path, resumed[self._command], staged[self._command])
        changed = differences(staged[self._command], resumed[self._command])
        if changed:
            rank_zero_only(echo)(f"The new stage overrides settings of the checkpoint: {changed}.")
        return staged

    def _resume(self, path: str, resumed: Namespace, staged: Namespace) -> Namespace:
        """Take the settings of the checkpoint, and report which settings of the files they override."""
        if self._command == "fit" and staged[self._command].data.empty_replay:
            check_own_stage(Path(path), resumed[self._command].name, self._files)
        check_same_environment(path, resumed[self._command], staged[self._command])
        ignored = differences(resumed[self._command], staged[self._command])
        if ignored:
            rank_zero_only(echo)(
                f"The checkpoint overrides settings of the configuration: {ignored}. Use a flag to change a setting."
            )
        return resumed

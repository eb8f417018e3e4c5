"""Text that `fit` prints at its start and at its end."""

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import lightning as L
from lightning.pytorch.loggers.logger import DummyLogger

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.reporting.best_evaluation import RETURN, read_best
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.metrics_csv import READ_ERRORS
from td3_lightning.reporting.paths import shown
from td3_lightning.training.data_module import ReplayData


def start_lines(trainer: L.Trainer, model: TD3, data: ReplayData, seed: str, start: Path) -> list[str]:
    """Describe a run: its environment, networks, replay buffer, seed and logs.

    Args:
        trainer: Trainer of the run.
        model: Agent.
        data: Data module.
        seed: Seed, as text.
        start: Working directory of the command.
    """
    replay = data.replay
    widths = _widths(model.hparams["hidden_dims"])
    if (critics := model.hparams.get("critic_hidden_dims")) is not None:
        widths = f"{widths} and {_widths(critics)}"
    weights = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    megabytes = replay.capacity * replay.transition_bytes / 1e6
    return [
        f"environment  {data.env_id}: observations of {data.obs_dim} numbers, actions of {len(data.action_low)}",
        f"networks     {widths}, 1 actor and {model.hparams['num_critics']} critics: {weights:,} weights",
        f"replay       {replay.capacity:,} rows of {replay.transition_bytes} bytes: {megabytes:,.1f} MB when full",
        *([f"dataset      {data.dataset.name}: {data.dataset.summary}"] if data.dataset is not None else []),
        f"seed         {seed}",
        f"logs         {_logs(trainer, start)}",
    ]


def _widths(dims: Sequence[int]) -> str:
    return "-".join(map(str, dims)) or "no hidden layers"


def _logs(trainer: L.Trainer, start: Path) -> str:
    """List the folders of the RunLoggers and the names of the other loggers."""
    loggers = [logger for logger in trainer.loggers if not isinstance(logger, DummyLogger)]
    folders = [shown(logger.log_dir, start) for logger in loggers if isinstance(logger, RunLogger)]
    others = [type(logger).__name__ for logger in loggers if not isinstance(logger, RunLogger)]
    return ", ".join(folders + others) or "none"


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run that has ended: its best evaluation, its files and the next commands.

    Args:
        folder: Folder of the run. None without a RunLogger.
        last: Path of last.ckpt. None if the run has not saved it.
        best: Path of the best checkpoint. None without one.
        start: Working directory of the command. Paths below it are shown relative to it.
        monitor: Metric that decides which evaluation is the best.
        mode: "max" or "min".
        with_config: Whether the other commands require the configuration besides the checkpoint.
        score: Value of the metric at the best checkpoint. None without one.
    """

    folder: Path | None
    last: Path | None
    best: Path | None
    start: Path
    monitor: str = RETURN
    mode: str = "max"
    with_config: bool = False
    score: float | None = None

    def lines(self, seconds: float) -> list[str]:
        """Describe the best evaluation, the duration and the files. Files that do not exist are left out.

        Args:
            seconds: Duration of the training.
        """
        metrics = self.folder and self.folder / "metrics.csv"
        found = None
        with contextlib.suppress(*READ_ERRORS):  # Curve has warned of a damaged file
            found = read_best(metrics, self.monitor, self.mode, self.score) if metrics else None
        curve = self.folder / "curve.png" if self.folder else None
        described = {
            "best": found.describe() if found else None,
            "checkpoint": self._shown(self.best),
            "curve": self._shown(curve if curve and curve.exists() else None),
            "time": str(timedelta(seconds=round(seconds))),
        }
        return [f"{name:<12} {text}" for name, text in described.items() if text]

    def next_lines(self, data: ReplayData, trainer: L.Trainer) -> list[str]:
        """List commands that test, record and resume the run, for a shell. Those that lack a file are left out."""
        commands: dict[str, str | None] = {}
        config = self._config if self.with_config else None
        checkpoint = (self.best or self.last) if config or not self.with_config else None
        words: tuple[str, ...] = ("--config", shown(config, self.start)) if config else ()
        if checkpoint:
            words += ("--ckpt_path", shown(checkpoint, self.start))
            commands["test"] = command("test", *words, start=self.start)
        if checkpoint and "rgb_array" in (data.eval_env.metadata.get("render_modes") or []):
            commands["record"] = command("record", *words, start=self.start)
        most = trainer.max_epochs
        if most is not None and 0 < most <= trainer.current_epoch:  # otherwise a stopping criterion ended the run
            commands["resume"] = self.resume_command("--trainer.max_epochs", str(2 * most))
        texts = [(name, text) for name, text in commands.items() if text]
        return [line for name, text in texts for line in command_lines(name, text)]

    def resume_command(self, *flags: str) -> str | None:
        """Return the command that resumes the run. None if the run has not saved its configuration and last.ckpt."""
        if self._config is None or self.last is None or not self.last.exists():
            return None
        paths = ("--config", shown(self._config, self.start), "--ckpt_path", shown(self.last, self.start))
        return command("fit", *paths, *flags, start=self.start)

    @property
    def _config(self) -> Path | None:
        """The configuration of the run, if it was saved."""
        path = self.folder / "config.yaml" if self.folder else None
        return path if path and path.exists() else None

    def _shown(self, path: Path | None) -> str | None:
        return None if path is None else shown(path, self.start)


def command_lines(purpose: str, text: str) -> list[str]:
    """Return the purpose of a command and, on its own line to copy, the command."""
    return [f"To {purpose}:", f"  {text}"]


def command(*words: str, start: Path) -> str:
    """Return a command line for a shell, with the program that runs this process.

    Args:
        words: Words after the program.
        start: Working directory of the command.
    """
    if os.path.basename(sys.argv[0]) == "td3-lightning":
        return shlex.join([_program("td3-lightning", start / sys.argv[0], start), *words])
    return shlex.join([_program("python", Path(sys.executable), start), "-m", "td3_lightning", *words])


def _program(name: str, path: Path, start: Path) -> str:
    """Return the name of a program if a shell finds it in the folder of `path`, else `path`."""
    found = shutil.which(name)
    return name if found is not None and os.path.dirname(found) == str(path.parent) else shown(path, start)

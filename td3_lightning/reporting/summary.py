"""Text that `fit` prints at its start and at its end."""

from pathlib import Path

import lightning as L
from lightning.pytorch.loggers.logger import DummyLogger

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.reporting.logger import RunLogger
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
    widths = "-".join(str(width) for width in model.hparams["hidden_dims"]) or "no hidden layers"
    weights = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    megabytes = replay.capacity * replay.transition_bytes / 1e6
    return [
        f"environment  {data.env_id}: observations of {data.obs_dim} numbers, actions of {len(data.action_low)}",
        f"networks     {widths}, 1 actor and {model.hparams['num_critics']} critics: {weights:,} weights",
        f"replay       {replay.capacity:,} rows of {replay.transition_bytes} bytes: {megabytes:,.1f} MB when full",
        f"seed         {seed}",
        f"logs         {_logs(trainer, start)}",
    ]


def _logs(trainer: L.Trainer, start: Path) -> str:
    """List the folders of the RunLoggers and the names of the other loggers."""
    loggers = [logger for logger in trainer.loggers if not isinstance(logger, DummyLogger)]
    folders = [shown(logger.log_dir, start) for logger in loggers if isinstance(logger, RunLogger)]
    others = [type(logger).__name__ for logger in loggers if not isinstance(logger, RunLogger)]
    return ", ".join(folders + others) or "none"


def best_line(path: str, start: Path) -> str:
    """Describe the best checkpoint."""
    return f"best         {shown(path, start)}"

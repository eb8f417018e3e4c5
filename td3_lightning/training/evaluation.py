"""Callbacks for evaluation: stop when solved, and save the parameters at each evaluation."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from lightning_utilities.core.rank_zero import WarningCache

from td3_lightning.atomic_files import atomic_write
from td3_lightning.envs.episode import Episode
from td3_lightning.errors import check_at_least
from td3_lightning.training.data_module import ReplayData


class StopWhenSolved(Callback):
    """Plays an episode without noise after each training episode, and stops the run when their running mean is high.

    Each of these episodes has a seed of its own, from `eval_seed` up.

    Args:
        threshold: The task is solved when the mean return is above it.
        window: Episodes in the mean, the last ones.
    """

    def __init__(self, threshold: float, window: int = 100) -> None:
        super().__init__()
        check_at_least("window", window, 1)
        self.threshold, self.window = threshold, window
        self.played = 0
        self.returns: list[float] = []  # the last of them, at most `window`

    @property
    def solved(self) -> bool:
        """Whether there are enough episodes, and good enough ones."""
        return len(self.returns) == self.window and float(np.mean(self.returns)) > self.threshold

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Ends a run at once that is resumed from where it was solved."""
        self._stop_if_solved(trainer)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Plays as many as the training has had; before an update, since a run may be stopped and saved after one."""
        if trainer.is_global_zero:
            self._play(trainer, pl_module)
        self._stop_if_solved(trainer)

    def _play(self, trainer: L.Trainer, module: Any) -> None:
        data: ReplayData = trainer.datamodule  # type: ignore[attr-defined]  # set without a type
        while self.played < module.episodes and not self.solved:
            report = Episode(data.eval_env, data.eval_seeds.start + self.played).play(module.act)
            self.played += 1
            self.returns = [*self.returns, report["return"]][-self.window :]
            values = {"eval/episode_return": report["return"], "eval/running_mean": float(np.mean(self.returns))}
            for logger in trainer.loggers:
                logger.log_metrics(values, module.env_steps)

    def _stop_if_solved(self, trainer: L.Trainer) -> None:
        """Stops all processes when the first one, which plays the episodes, has it solved."""
        if trainer.strategy.broadcast(self.solved) and not trainer.should_stop:
            trainer.should_stop = True
            self._announce()

    @rank_zero_only
    def _announce(self) -> None:
        mean = f"the mean return of the last {self.window} evaluation episodes is {np.mean(self.returns):,.2f}"
        rank_zero_info(f"Solved: {mean}, above {self.threshold:,.2f}.")

    def state_dict(self) -> dict[str, Any]:
        """The last returns, and how many there have been."""
        return {"returns": list(self.returns), "played": self.played}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes them back."""
        self.returns, self.played = list(state_dict["returns"])[-self.window :], state_dict["played"]


class SaveEvaluations(Callback):
    """Writes `evaluations.npz` beside the logs: `env_steps` (n,) and `returns` (n, episodes) of all evaluations so far.

    With `trainer.num_sanity_val_steps: -1` the first one is of the policy before training.
    """

    def __init__(self) -> None:
        super().__init__()
        self.env_steps: list[int] = []
        self.returns: list[list[float]] = []
        self._running: list[float] = []
        self._warnings = WarningCache()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begins an evaluation; one that was stopped in the middle is begun again."""
        self._running = []

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Notes an episode's return."""
        self._running.append(outputs["return"])

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Adds the evaluation, and writes the file once training has begun."""
        if trainer.state.fn != "fit" or (trainer.sanity_checking and self.env_steps):
            return  # it is not the run's, or Lightning checks a resumed one again
        self.env_steps.append(pl_module.env_steps)
        self.returns.append(self._running)
        if not trainer.sanity_checking and trainer.loggers and trainer.log_dir is not None:
            self._write(Path(trainer.log_dir, "evaluations.npz"))

    @rank_zero_only
    def _write(self, path: Path) -> None:
        episodes = max(map(len, self.returns))
        rows = [row + [float("nan")] * (episodes - len(row)) for row in self.returns]  # their number may change
        try:
            atomic_write(path, lambda file: np.savez(file, env_steps=self.env_steps, returns=rows))
        except OSError as error:
            self._warnings.warn(f"The run goes on without {path.name}, which could not be written: {error}")

    def state_dict(self) -> dict[str, Any]:
        """All evaluations."""
        return {"env_steps": list(self.env_steps), "returns": [list(row) for row in self.returns]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes them back."""
        self.env_steps, self.returns = list(state_dict["env_steps"]), [list(row) for row in state_dict["returns"]]

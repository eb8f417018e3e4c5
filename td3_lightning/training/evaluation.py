"""Callbacks for evaluation: stop when the task is solved, and save the returns of all evaluations."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from lightning_utilities.core.rank_zero import WarningCache
from numpy.typing import NDArray

from td3_lightning.atomic_files import atomic_write
from td3_lightning.envs.episode import Episode
from td3_lightning.errors import require_float, require_int
from td3_lightning.training.data_module import EVAL_SEED, TEST_SEED, ReplayData


class StopWhenSolved(Callback):
    """Stop the run when the mean return of recent evaluation episodes exceeds a threshold.

    The callback plays one evaluation episode without noise after each training episode. Their seeds count up from
    10,000, the first one of an evaluation, to 49,999, the last one that `test` does not use, and then start over.

    Args:
        threshold: Mean return above which the task is solved.
        window: Number of most recent episodes in the mean.

    Raises:
        UsageError: The threshold is not finite, or the window is smaller than 1.
    """

    def __init__(self, threshold: float, window: int = 100) -> None:
        super().__init__()
        self.threshold = require_float("threshold", threshold)
        self.window = require_int("window", window, least=1)
        self.played = -1  # before the first training episode
        self.returns: list[float] = []  # the last ones, at most `window`

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Begin with the next training episode if the agent has trained without this callback."""
        if self.played < 0:
            self.played = pl_module.episodes

    @property
    def solved(self) -> bool:
        """Return whether the window is full and its mean return exceeds the threshold."""
        return len(self.returns) == self.window and float(np.mean(self.returns)) > self.threshold

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop at once if the resumed run has solved the task already."""
        self._stop_if_solved(trainer)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Play one episode for each finished training episode.

        This happens before an update, because a run may be stopped and saved after an update.
        """
        data: ReplayData = trainer.datamodule  # type: ignore[attr-defined]  # set without a type
        while trainer.is_global_zero and self.played < pl_module.episodes and not self.solved:
            seed = EVAL_SEED + self.played % (TEST_SEED - EVAL_SEED)
            report = Episode(data.restorable_eval_env, seed).play(pl_module.act)
            self.played += 1
            self.returns = [*self.returns, report["return"]][-self.window :]
            values = {"eval/episode_return": report["return"], "eval/running_mean": float(np.mean(self.returns))}
            for logger in trainer.loggers:
                logger.log_metrics(values, pl_module.env_steps)
        self._stop_if_solved(trainer)

    def _stop_if_solved(self, trainer: L.Trainer) -> None:
        """Stop all processes when rank 0, which plays the episodes, has solved the task."""
        if trainer.strategy.broadcast(self.solved) and not trainer.should_stop:
            trainer.should_stop = True
            if trainer.is_global_zero:
                mean = f"the mean return of the last {self.window} evaluation episodes is {np.mean(self.returns):,.2f}"
                rank_zero_info(f"Solved: {mean}, above {self.threshold:,.2f}.")

    def state_dict(self) -> dict[str, Any]:
        """Return the last returns and the number of episodes played."""
        return {"returns": list(self.returns), "played": self.played}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the last returns and the number of episodes played."""
        self.returns, self.played = list(state_dict["returns"])[-self.window :], state_dict["played"]


class SaveEvaluations(Callback):
    """Write `evaluations.npz` to the log folder: `env_steps` (n,) and `returns` (n, episodes) of all evaluations.

    A run with `data.dataset.offline` has `updates` (n,) instead of `env_steps`.
    With `trainer.num_sanity_val_steps: -1`, the first evaluation is that of the untrained policy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clocks: list[int] = []
        self.returns: list[list[float]] = []
        self._running: list[float] = []
        self._clock_name: str | None = None  # unit of the clocks
        self._warnings = WarningCache()

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Drop the evaluations of an earlier stage that counted updates instead of environment steps, or vice versa."""
        if self._clock_name not in (None, pl_module.clock_name):
            self.clocks, self.returns = [], []
        self._clock_name = pl_module.clock_name

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start a new list of returns. An interrupted evaluation starts over."""
        self._running = []

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Record the return of an episode."""
        self._running.append(outputs["return"])

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Record the evaluation, and write the file unless this is the sanity check."""
        is_partial = trainer.sanity_checking and trainer.num_sanity_val_batches != trainer.num_val_batches
        if trainer.state.fn != "fit" or is_partial or (trainer.sanity_checking and self.clocks):
            return  # another command, a sanity check with fewer episodes, or that of a resumed run
        self.clocks.append(pl_module.clock)
        self.returns.append(self._running)
        if not trainer.sanity_checking and trainer.loggers and trainer.log_dir is not None:
            self._write(Path(trainer.log_dir, "evaluations.npz"), pl_module.clock_name)

    @rank_zero_only
    def _write(self, path: Path, clock_name: str) -> None:
        arrays: dict[str, Any] = {clock_name: self.clocks, "returns": self._padded()}
        try:
            atomic_write(path, lambda file: np.savez(file, **arrays))
        except OSError as error:
            self._warnings.warn(f"Cannot write {path}: {error}. The run continues without it.")

    def _padded(self) -> NDArray[np.float64]:
        """Return the returns (n, episodes). The number of episodes may change, so NaN fills the end of a row."""
        padded = np.full((len(self.returns), max(map(len, self.returns), default=0)), np.nan)
        for row, own in zip(padded, self.returns, strict=True):
            row[: len(own)] = own
        return padded

    def state_dict(self) -> dict[str, Any]:
        """Return all evaluations and the unit of their clocks."""
        returns = torch.from_numpy(self._padded())
        return {"env_steps": list(self.clocks), "returns": returns, "clock_name": self._clock_name}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore all evaluations."""
        self.clocks = list(state_dict["env_steps"])
        self.returns = torch.as_tensor(state_dict["returns"]).tolist()
        self._clock_name = state_dict["clock_name"]

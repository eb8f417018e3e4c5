"""Evaluations beyond Lightning's own at an epoch's end: after every episode, of averaged weights, all in one array."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback, WeightAveraging
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from lightning_utilities.core.rank_zero import WarningCache
from torch.optim.swa_utils import get_ema_multi_avg_fn

from td3_lightning.collector import Collector
from td3_lightning.data import ReplayData
from td3_lightning.durable import write_durably
from td3_lightning.envs import Episode
from td3_lightning.errors import UsageError, check_at_least


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


class AveragedWeights(WeightAveraging):
    """Evaluates and saves a running mean of the weights, while the weights themselves train on as they would without.

    A checkpoint's `state_dict` is the mean, which `test` and `act` then use; a resumed run goes on with both. It is
    Lightning's, made exact where a run is stopped in an evaluation or ends within an epoch. The mean is brought up to
    date in every tenth update, as that takes 0.4 ms of a small agent's. Stands before the Collector in the list of
    callbacks, as an update after which a run is stopped or an environment fails counts in the mean.

    Args:
        decay: What is left of an old mean after an update, in [0, 1): it is over the last `1 / (1 - decay)` or so.
    """

    EVERY = 10

    def __init__(self, decay: float = 0.9999) -> None:
        if decay is None or not 0 <= decay < 1:  # null on the command line
            raise UsageError(f"decay is in [0, 1), but {decay} came; give one such as 0.9999.")
        mean = get_ema_multi_avg_fn(decay**self.EVERY)  # type: ignore[no-untyped-call]
        super().__init__(use_buffers=False, multi_avg_fn=mean)  # these are copied: a mean of whole numbers is none
        self._evaluating = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Makes the mean; raises `UsageError` beside callbacks that would miss it or come before it."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(each, Collector) for each in callbacks[: callbacks.index(self)]):
            raise UsageError("AveragedWeights came after the Collector in the callbacks; put it before.")
        if any(isinstance(each, StopWhenSolved) for each in callbacks):
            raise UsageError(
                "StopWhenSolved plays with the weights themselves, but AveragedWeights came too, whose mean is what a "
                "checkpoint would hold; take EarlyStopping with a stopping_threshold, or leave one of them out."
            )
        trainer.precision_plugin.convert_module(pl_module)  # or the mean would be of another type
        super().setup(trainer, pl_module, stage)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Moves the mean to the weights."""
        if pl_module.updates % self.EVERY == 0:
            assert self._average_model is not None
            self._average_model.update_parameters(pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Does nothing, since the updates are what counts."""

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Puts the mean in the place of the weights, in training; what is judged later is as it is."""
        if trainer.state.fn == "fit":
            super().on_validation_epoch_start(trainer, pl_module)
            self._evaluating = True

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Puts the weights back."""
        if self._evaluating:
            super().on_validation_epoch_end(trainer, pl_module)
            self._evaluating = False

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Puts the weights back after an evaluation that failed."""
        self.on_validation_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leaves the weights in place, unlike Lightning's, since the last checkpoint comes after it."""

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Takes both back where training goes on; what is judged is the mean."""
        if trainer.state.fn == "fit":
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Saves both, each under its name in the middle of an evaluation too."""
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if self._evaluating:
            own, mean = checkpoint["state_dict"], checkpoint["current_model_state"]
            checkpoint["state_dict"], checkpoint["current_model_state"] = mean, own


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
            write_durably(path, lambda file: np.savez(file, env_steps=self.env_steps, returns=rows))
        except OSError as error:
            self._warnings.warn(f"The run goes on without {path.name}, which could not be written: {error}")

    def state_dict(self) -> dict[str, Any]:
        """All evaluations."""
        return {"env_steps": list(self.env_steps), "returns": [list(row) for row in self.returns]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes them back."""
        self.env_steps, self.returns = list(state_dict["env_steps"]), [list(row) for row in state_dict["returns"]]

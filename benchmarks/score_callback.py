"""Callbacks that evaluate our runs for benchmarks.time_to_score and benchmarks.score_per_hour."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from benchmarks.cpu_score_run import CpuScorer
from benchmarks.score_run import TASKS, Scorer
from td3_lightning.envs.wrappers import ActionRepeat


class ScoreCallback(Callback):
    """Evaluate as benchmarks.score_run does for the other implementations.

    The stopwatch does not count the run's own evaluations either, but it counts the episodes of `StopWhenSolved`.

    Args:
        path: The file for one JSON line per evaluation.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._own_evaluation = ExitStack()

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Find the task and the number of frames per action."""
        data = trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it without a type
        (task,) = [each for each in TASKS.values() if each.env_id == data.env_id]
        self.scorer, self.frames = Scorer(task, self.path), frames_per_action(data.eval_env)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        """Evaluate if it is due."""
        data = trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it without a type
        self.scorer.evaluate(pl_module.env_steps * self.frames, pl_module.act, data.make_env)

    def on_validation_start(self, *_: Any) -> None:
        """Pause the stopwatch."""
        self._own_evaluation.enter_context(self.scorer.pause())

    def on_validation_end(self, *_: Any) -> None:
        """Continue the stopwatch."""
        self._own_evaluation.close()


def frames_per_action(env: Any) -> int:
    """Return the number of frames for which an action is held."""
    frames = 1
    while hasattr(env, "env"):
        frames *= env.repeat if isinstance(env, ActionRepeat) else 1
        env = env.env
    return frames


class CpuScoreCallback(Callback):
    """Evaluate within the run's own evaluations, with the policy of `PolicyCheckpoint` or `AveragedWeights`.

    Add it after these callbacks. The clock counts neither evaluation.

    Args:
        path: The file for one JSON line per evaluation.
        budget: Seconds of CPU time after which the process ends.
    """

    def __init__(self, path: str, budget: float) -> None:
        self.scorer = CpuScorer(Path(path), budget)
        self._own_evaluation = ExitStack()

    def on_validation_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Stop the clock."""
        self._own_evaluation.enter_context(self.scorer.pause())

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Evaluate the policy of the evaluation if it is due."""
        data = trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it without a type
        frames = pl_module.env_steps * frames_per_action(data.eval_env)
        self.scorer.evaluate(frames, pl_module.act, data.make_env)

    def on_validation_end(self, *_: Any) -> None:
        """Start the clock again."""
        self._own_evaluation.close()

"""Policy checkpoints: evaluate and save the policy with the highest minimum return in training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from td3_lightning.algorithm.agent import Agent
from td3_lightning.envs.vector_env import Step, TrainingVectorEnv
from td3_lightning.errors import require_float, require_int
from td3_lightning.training.data_module import ReplayData


@dataclass
class Assessment:
    """Record the minimum return of the first `episodes` episodes that one policy begins.

    Episodes that an earlier policy began do not count. The first episodes to begin count, not the first to end, because
    the latter would prefer short episodes.

    Args:
        episodes: Number of episodes.
        counts: Whether the running episode of each environment counts.
        finished: Episodes that count and have ended.
        min_return: Smallest of their returns.
    """

    episodes: int
    counts: list[bool]
    finished: int = 0
    min_return: float = math.inf

    @classmethod
    def begin(cls, episodes: int, steps: Sequence[int]) -> Assessment:
        """Begin with the environments whose running episode has no step yet."""
        assessment = cls(episodes, [False] * len(steps))
        for env, steps_taken in enumerate(steps):
            assessment.counts[env] = steps_taken == 0 and assessment._has_room()
        return assessment

    def _has_room(self) -> bool:
        return self.finished + sum(self.counts) < self.episodes

    def add(self, step: Step) -> bool:
        """Add the episodes that ended in a step. Return whether one of them, or one that begins, counts."""
        before = (self.finished, list(self.counts))
        reports = iter(step.reports)
        for env, ends in enumerate(zip(step.terminated, step.truncated, strict=True)):
            if any(ends):
                self._end_episode(env, next(reports)["return"])
        return before != (self.finished, self.counts)

    def _end_episode(self, env: int, episode_return: float) -> None:
        if self.counts[env]:
            self.finished += 1
            self.min_return = min(self.min_return, episode_return)
            self.counts[env] = False
        self.counts[env] = self._has_room()

    def is_over(self, best: float) -> bool:
        """Return whether all episodes have ended, or one of them has a smaller return than the best policy."""
        return self.finished >= self.episodes or self.min_return < best


class PolicyCheckpoint(Callback):
    """Evaluate and save the policy with the highest minimum return over several training episodes.

    As in TD7 (Fujimoto et al., 2023), the Collector collects whole training episodes with a policy that
    does not change. This is an assessment. It ends early after an episode with a smaller return than the best policy's
    smallest return. Otherwise, the policy is copied. The updates for the collected steps follow.

    The `state_dict` of a checkpoint contains the copied policy, which `test` and `act` use. A resumed run trains the
    current weights. The current policy is used until the first assessment is complete. The defaults are those of the
    authors' code.

    Args:
        early_episodes: Episodes of an assessment in the early phase.
        late_episodes: Episodes of an assessment in the late phase.
        switch_after: Updates in the early phase. The next assessment begins the late phase.
        reset_weight: Factor on the highest minimum return at the start of the late phase, in [0, 1]. A negative return
            is multiplied by `2 - reset_weight`, so that the threshold never rises.

    Raises:
        UsageError: A setting is out of range.
    """

    def __init__(
        self,
        early_episodes: int = 1,
        late_episodes: int = 20,
        switch_after: int = 750_000,
        reset_weight: float = 0.9,
    ) -> None:
        super().__init__()
        self.early_episodes = require_int("early_episodes", early_episodes, least=1)
        self.late_episodes = require_int("late_episodes", late_episodes, least=1)
        self.switch_after = require_int("switch_after", switch_after, least=0)
        self.reset_weight = require_float("reset_weight", reset_weight, least=0, most=1)
        self._evaluating = False
        self.best_return = -math.inf  # minimum return of the copied policy
        self.assessments = 0  # complete ones and those that ended early
        self.is_late = False
        self.assessment: Assessment | None = None  # the one in progress
        self._policy: dict[str, Tensor] = {}  # the copied policy, or the current one during an evaluation

    def begin(self, updates: int, envs: TrainingVectorEnv) -> None:
        """Begin an assessment of the policy after some updates, or continue the one that is in progress."""
        if self.assessment is None or len(self.assessment.counts) != envs.num_envs:
            if updates > self.switch_after and not self.is_late:
                self.is_late = True  # the minimum over more episodes is smaller
                self.best_return *= self.reset_weight if self.best_return > 0 else 2 - self.reset_weight
            episodes = self.late_episodes if self.is_late else self.early_episodes
            self.assessment = Assessment.begin(episodes, envs.episode_steps())

    def add(self, step: Step, trainer: L.Trainer, module: Agent) -> bool:
        """Add the episodes that ended in a step, and return whether an episode of the assessment began or ended."""
        assert self.assessment is not None
        changed = self.assessment.add(step)
        if self.assessment.is_over(self.best_return):
            self._end(trainer, module, self.assessment.min_return)
        return changed

    def _end(self, trainer: L.Trainer, module: Agent, min_return: float) -> None:
        """Copy the policy if it is at least as good as the copied one."""
        self.assessment = None
        self.assessments += 1
        if min_return >= self.best_return:
            self.best_return = min_return
            self._policy = {name: value.clone() for name, value in module.policy_state().items()}
        values = {"policy_checkpoint_return": self.best_return, "assessments": float(self.assessments)}
        for logger in trainer.loggers:
            logger.log_metrics({f"train/{name}": value for name, value in values.items()}, module.env_steps)

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Swap in the copied policy for an evaluation during `fit`. Other commands load it already."""
        if trainer.state.fn == "fit":
            self._swap(pl_module)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Swap the current policy back."""
        if self._evaluating:
            self._swap(pl_module)

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        """Swap the current policy back after a failed evaluation."""
        self.on_validation_epoch_end(trainer, pl_module)

    @torch.no_grad()
    def _swap(self, module: Agent) -> None:
        """Exchange the weights in the module and the stored ones in place, because optimizers refer to the former."""
        self._evaluating = not self._evaluating
        for name, weight in module.policy_state().items() if self._policy else ():
            current = weight.clone()
            weight.copy_(self._policy[name])
            self._policy[name].copy_(current)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Save the copied policy in `state_dict` and the current one beside it, also when they are swapped."""
        if not self._policy:
            return
        state = checkpoint["state_dict"]
        current = self._policy if self._evaluating else {name: state[name] for name in self._policy}
        if not self._evaluating:
            checkpoint["state_dict"] = {**state, **self._policy}
        checkpoint["trained_policy"] = current

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Restore the copied policy for `fit`. Start anew if the replay does, because the task may have changed."""
        if trainer.state.fn != "fit":
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set without a type
        state = checkpoint["callbacks"].get(self.state_key)
        if state is None or (isinstance(data, ReplayData) and data.empty_replay):
            checkpoint["callbacks"].pop(self.state_key, None)
        else:
            self._policy = {name: value.clone() for name, value in checkpoint.get("deployed_policy", {}).items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the best return, the phase, the number of assessments and the one in progress."""
        own = {"best_return": self.best_return, "assessments": self.assessments, "is_late": self.is_late}
        return {**own, "assessment": self.assessment and asdict(self.assessment)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best return, the phase, the number of assessments and the one in progress."""
        self.best_return, self.is_late = state_dict["best_return"], state_dict["is_late"]
        self.assessments, running = state_dict["assessments"], state_dict["assessment"]
        self.assessment = running and Assessment(**running)

"""Callback that steps the training environments and fills the replay buffer."""

from collections.abc import Callable
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn

from td3_lightning.algorithm.distributed import gather_from_ranks, select_rank
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.vector_env import Step
from td3_lightning.errors import UsageError
from td3_lightning.schedules import Schedule
from td3_lightning.training.collection import Collection, Exploration
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.upkeep import Upkeep

ROUNDING = 1e-9  # tolerance for the rounding errors of updates_ahead


class Collector(Callback):
    """Collect transitions with random actions, then with the policy plus Gaussian noise.

    As in the paper, each environment step is followed by storing the transition, sampling a batch and an update. With
    `data.vector_env: overlapped`, the next step begins before the update and runs at the same time.

    Args:
        warmup_steps: Environment steps before the first update.
        exploration_noise: Standard deviation of the noise relative to half the action range, or a schedule.
        random_steps: Environment steps with uniformly random actions. None means `warmup_steps`.
        collect: Minimum number of environment steps to collect at once, or "episode" to collect until an episode
            ends. The updates for these steps follow.

    Raises:
        UsageError: A setting is out of range, or a checkpoint cannot hold the schedule of the noise.
    """

    def __init__(
        self,
        warmup_steps: int = 25_000,
        exploration_noise: float | Schedule = 0.1,
        random_steps: int | None = None,
        collect: int | Literal["episode"] = 1,
    ) -> None:
        super().__init__()
        self.collection = Collection(warmup_steps, collect)
        self.exploration = Exploration(exploration_noise, warmup_steps if random_steps is None else random_steps)
        self.upkeep = Upkeep(self.exploration.noise)
        self.stopping = False  # ends the warm-up and an assessment early, so that the run can be saved and stopped
        self.stops_directly: Callable[[], bool] | None = None  # whether a stop follows the current update directly
        self.updates_ahead = 0.0  # updates done minus updates due for the environment steps so far
        self.env_steps: int | None = None  # of this rank; a checkpoint's clock is that of rank 0
        self.last_return = float("nan")

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        """Check that the parts of the run fit together."""
        self.collection.setup(trainer)
        self.upkeep.setup(trainer, stage, self)
        if stage == "fit":  # a subclass may override the agent's hook without calling it
            TD3.setup(pl_module, stage)

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Start the episodes and fill the replay buffer to `warmup_steps`, unless a checkpoint restored both.

        The first `random_steps` actions of an agent are random. A trained agent with a new replay buffer fills it with
        its policy. A run with `data.dataset.offline` takes no steps.
        """
        data: ReplayData = trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it without a type
        pl_module.check_optimizers()
        pl_module.exploration_noise = self.exploration.noise  # what act(obs, deterministic=False) uses
        if trainer.ckpt_path is not None and self.env_steps is not None:
            pl_module.env_steps = self.env_steps
        self.env_steps = pl_module.env_steps
        self.upkeep.begin(trainer, pl_module, data)
        if not data.offline:
            self._begin(trainer, pl_module, data)

    def _begin(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
        # A checkpoint without its replay is not refilled: sampling raises an error.
        has_steps = data.replay.steps_before + data.replay.steps_stored > 0
        fill = data.empty_replay or has_steps or trainer.ckpt_path is None
        if trainer.ckpt_path is None or not data.replay.steps_stored:  # the clock of the schedules is the agent's
            data.replay.steps_before = module.env_steps - data.replay.steps_stored
        if not len(data.envs.obs):
            data.begin_episodes()
        steps = self.collection.warmup_steps
        while not self.stopping and (module.env_steps < steps or (fill and data.replay.steps_stored < steps)):
            self._step(trainer, module, data)
        self.upkeep.log.start(module)
        if self.collection.is_assessing or self.updates_ahead > ROUNDING:  # the last run stopped there
            self._catch_up(trainer, module, data)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Call the agent's own hook, because a subclass may override it without calling it."""
        TD3.on_train_epoch_start(pl_module)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin the next step in mode overlapped, and update the agent's statistics of observations."""
        TD3.on_train_batch_start(pl_module, batch, batch_idx)  # as above
        data: ReplayData = trainer.datamodule  # type: ignore[attr-defined]  # as above
        if data.is_overlapped and not data.envs.is_stepping:
            data.envs.begin(self.exploration.act(pl_module, data.envs.obs))
        self.upkeep.unseen.pass_to(pl_module)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take the environment steps that precede the next update, and log the last update."""
        data: ReplayData = trainer.datamodule  # type: ignore[attr-defined]  # as above
        self.upkeep.after_update(trainer, pl_module, data, outputs)
        self.updates_ahead += not data.offline
        self._catch_up(trainer, pl_module, data)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop a diverged run before it is evaluated."""
        self.upkeep.before_evaluation(pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Count the time again."""
        self.upkeep.log.proceed()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Stop a diverged run before it overwrites a good checkpoint, and refuse a save within an update."""
        self.upkeep.before_save(trainer, pl_module)
        TD3.on_save_checkpoint(pl_module, checkpoint)  # as in setup
        checkpoint["threads"] = torch.get_num_threads()

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Warn if a run is resumed with another number of threads, which sum in another order.

        Raises:
            UsageError: The agent has not restored its clocks.
        """
        if pl_module.updates != checkpoint["clocks"]["updates"]:
            raise UsageError(
                f"on_load_checkpoint of {type(pl_module).__name__} must call super().on_load_checkpoint(checkpoint), "
                "which restores the state of the agent. Add the call."
            )
        threads, saved = torch.get_num_threads(), checkpoint.get("threads")
        if trainer.state.fn == "fit" and isinstance(saved, int) and saved != threads:
            rank_zero_warn(
                f"Results are bit-exact only with the same number of threads as in the checkpoint, {saved}, got "
                f"{threads}. Set OMP_NUM_THREADS={saved}."
            )

    def _catch_up(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
        """Take the environment steps that precede the next update, and log the last update."""
        stops_directly = self.stops_directly
        while self.updates_ahead > ROUNDING or self.collection.is_assessing:
            self.collection.begin(module, data)
            while not self.collection.is_complete(module):
                if self.collection.is_assessing and self.stopping and (not stops_directly or stops_directly()):
                    return  # the run stops, and continues here when it is resumed
                self._step_before_update(trainer, module, data)
        self.upkeep.write_log(trainer, module, data)

    def _step_before_update(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
        """Step all environments once after the warm-up, so that updates are due."""
        start = module.env_steps
        step = self._step(trainer, module, data)
        self.updates_ahead -= (module.env_steps - start) * data.updates_per_step(start)
        self.collection.add(trainer, module, data, step)

    def _step(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> Step:
        """Step all environments once and store the transitions."""
        if not data.envs.is_stepping:
            data.envs.begin(self.exploration.act(module, data.envs.obs))
        step = data.envs.finish()
        rows = zip(step.obs, step.action, step.reward, step.terminated, step.truncated, step.last_obs, strict=True)
        for env, row in enumerate(rows):
            if step.resets is None or not step.resets[env]:
                data.replay.add(env, *row)
        if module.settings.normalize_observations:
            self.upkeep.unseen.add(step)
        self.env_steps = module.env_steps = module.env_steps + len(step.stepped)
        if step.reports:
            self.last_return = step.reports[-1]["return"]
            self.upkeep.after_step(trainer, module, step)
        return step

    def state_dict(self) -> dict[str, Any]:
        """Return each rank's random generator, clock, update balance, last return, losses and unseen statistics."""
        return {"ranks": gather_from_ranks(self._state)}

    def _state(self) -> dict[str, Any]:
        return {
            "rng": self.exploration.rng.bit_generator.state,
            "env_steps": self.env_steps,
            "updates_ahead": self.updates_ahead,
            "last_return": self.last_return,
            **self.upkeep.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of this rank. Keep the current state if the number of ranks has changed."""
        own = select_rank(state["ranks"])
        if own is not None:
            self.exploration.rng.bit_generator.state, self.env_steps = own["rng"], own.get("env_steps")
            self.updates_ahead, self.last_return = own["updates_ahead"], own["last_return"]
            self.upkeep.load_state_dict(own)

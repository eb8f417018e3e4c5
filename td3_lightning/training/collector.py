"""Callback that steps the training environments and fills the replay buffer."""

from collections.abc import Callable
from typing import Any, Literal

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray

from td3_lightning.algorithm.distributed import gather_from_ranks, select_rank
from td3_lightning.algorithm.exploration import as_noise, with_noise
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.env_group import Step
from td3_lightning.envs.episode import MAX_EPISODE_STEPS
from td3_lightning.errors import EnvError, UsageError, refuse, require_int
from td3_lightning.schedules import Schedule
from td3_lightning.seeding import derive_seed
from td3_lightning.training import run_checks
from td3_lightning.training.collector_state import COLLECTOR
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.data_settings import MAX_STEPS
from td3_lightning.training.denormals import FLUSH_INTERVAL, flush_denormals
from td3_lightning.training.divergence import check_action, check_losses, check_weights
from td3_lightning.training.last_agent import LastAgent
from td3_lightning.training.loop_counters import check_is_between_updates
from td3_lightning.training.normalizer_inputs import NormalizerInputs
from td3_lightning.training.policy_checkpoint import PolicyCheckpoint
from td3_lightning.training.prioritization import TD_ERROR, update_priorities
from td3_lightning.training.update_log import UpdateLog, is_log_due, log_values, varying_settings

ROUNDING = 1e-9  # tolerance for the rounding errors of updates_ahead


class Collector(Callback):
    """Collect transitions with random actions, then with the policy plus Gaussian noise.

    As in the paper, each environment step is followed by storing the transition, sampling a batch and an update. With
    `data.env_mode: overlapped`, the next step begins before the update and runs at the same time.

    Args:
        warmup_steps: Environment steps before the first update.
        exploration_noise: Standard deviation of the noise relative to half the action range, or a schedule.
        random_steps: Environment steps with uniformly random actions. None means `warmup_steps`.
        collect: Minimum number of environment steps to collect at once, or "episode" to collect until an episode
            ends. The updates for these steps follow.

    Raises:
        UsageError: A setting is out of range, or a checkpoint cannot hold the schedule of the noise.
    """

    check_state = staticmethod(COLLECTOR)  # checks the state in a checkpoint, which may be untrusted

    def __init__(
        self,
        warmup_steps: int = 25_000,
        exploration_noise: float | Schedule = 0.1,
        random_steps: int | None = None,
        collect: int | Literal["episode"] = 1,
    ) -> None:
        super().__init__()
        fix = "Use 25000, for example. The first update requires a transition."
        self.warmup_steps = require_int("warmup_steps", warmup_steps, least=1, most=MAX_STEPS, fix=fix)
        random_steps = self.warmup_steps if random_steps is None else random_steps
        self.random_steps = require_int("random_steps", random_steps, least=0)
        if isinstance(collect, str) and collect != "episode":
            raise refuse("collect", 'a number of steps or "episode"', collect, "Use 1, for example.")
        self.collect = "episode" if isinstance(collect, str) else require_int("collect", collect, 1, MAX_STEPS)
        self.exploration_noise = as_noise(exploration_noise)
        self.rng = np.random.default_rng(derive_seed("exploration"))
        self.stopping = False  # ends the warm-up and an assessment early, so that the run can be saved and stopped
        self.stops_directly: Callable[[], bool] | None = None  # whether a stop follows the current update directly
        self._policy_checkpoint: PolicyCheckpoint | None = None
        self._last = LastAgent()
        self._start_over()

    def _start_over(self) -> None:
        self.updates_ahead = 0.0  # updates done minus updates due for the environment steps so far
        self.env_steps: int | None = None  # of this rank; a checkpoint's clock is that of rank 0
        self.last_return = float("nan")
        self._unseen = NormalizerInputs()
        self._log = UpdateLog()

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Check the Trainer, and that the agent fits the environment."""
        run_checks.check_trainer(trainer, stage, self)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        self._policy_checkpoint = next((each for each in callbacks if isinstance(each, PolicyCheckpoint)), None)
        if self._policy_checkpoint is not None:
            run_checks.check_assessments(self.collect, self.random_steps, self.warmup_steps)
        if stage == "fit" or isinstance(trainer.datamodule, ReplayData):  # type: ignore[attr-defined]  # as below
            module, data = _module_and_data(trainer)
            run_checks.check_dimensions(module, data)
            if stage == "fit":
                if self._last.has_changed(module):
                    self._start_over()
                run_checks.check_agent(module, data)
                run_checks.check_env_mode(data.env_mode, self.collect, self._policy_checkpoint is not None)
                if data.offline:
                    run_checks.check_offline(trainer, varying_settings(module, data, self.exploration_noise))
                    run_checks.warn_unused(type(self), warmup_steps=self.warmup_steps, collect=self.collect)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the episodes and fill the replay buffer to `warmup_steps`, unless a checkpoint restored both.

        The first `random_steps` actions of an agent are random. A trained agent with a new replay buffer fills it with
        its policy. A run with `data.dataset.offline` takes no steps.
        """
        module, data = _module_and_data(trainer)
        module.check_optimizers()
        module.exploration_noise = self.exploration_noise  # what act(obs, deterministic=False) uses
        if data.dataset is not None and module.settings.normalize_observations:
            obs = data.dataset.observations_for(module)
            if trainer.is_global_zero:  # the statistics are those of all processes
                self._unseen.observations.add_dataset(obs)
        self._unseen.observations.check(module)
        if trainer.ckpt_path is not None and self.env_steps is not None:
            module.env_steps = self.env_steps
        self.env_steps = module.env_steps
        self._log.start(module)
        if not data.offline:
            self._begin(trainer, module, data)

    def _begin(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
        # A checkpoint without its replay is not refilled: sampling raises an error.
        has_steps = data.replay.steps_before + data.replay.steps_stored > 0
        fill = data.empty_replay or has_steps or trainer.ckpt_path is None
        if trainer.ckpt_path is None or not data.replay.steps_stored:  # the clock of the schedules is the agent's
            data.replay.steps_before = module.env_steps - data.replay.steps_stored
        if data.replay.steps_stored and not module.env_steps:
            rank_zero_warn(
                f"A new agent learns from {data.replay.num_transitions:,} transitions that an earlier agent collected. "
                "Use a new ReplayData to start with an empty replay buffer."
            )
        if not len(data.envs.obs):
            data.begin_episodes()
        self._unseen.begin(module, data)
        while not self.stopping and (
            module.env_steps < self.warmup_steps or (fill and data.replay.steps_stored < self.warmup_steps)
        ):
            self._step(trainer, module, data)
        self._log.start(module)
        if self._is_assessing or self.updates_ahead > ROUNDING:  # stopped in an assessment or by a failed step
            self._catch_up(trainer, module, data)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Call the agent's own hook, because a subclass may override it without calling it."""
        TD3.on_train_epoch_start(pl_module)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin the next step in mode overlapped, and update the agent's statistics of observations and rewards."""
        TD3.on_train_batch_start(pl_module, batch, batch_idx)  # as above
        data: ReplayData = trainer.datamodule  # type: ignore[attr-defined]  # as below
        if data.env_mode == "overlapped" and not data.envs.is_stepping:
            data.envs.begin(self._act(pl_module, data))
        self._unseen.pass_to(pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the environment steps that precede the next update, and log the last update."""
        module, data = _module_and_data(trainer)
        losses = {name: value for name, value in outputs.items() if name != TD_ERROR}
        flush = module.updates % FLUSH_INTERVAL == 0
        if module.device.type == "cpu" or flush or is_log_due(trainer, module):  # reading from a GPU synchronizes
            check_losses(losses, module.updates)
        update_priorities(module, data.replay, outputs)
        if flush:
            for optimizer in trainer.optimizers:
                flush_denormals(optimizer)
        self.updates_ahead += not data.offline
        self._log.add(losses)
        self._catch_up(trainer, module, data)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop a diverged run before it is evaluated. The logged speed excludes the evaluation."""
        if isinstance(pl_module, TD3):  # validate accepts other modules, and other data
            check_weights(pl_module, pl_module.updates)
        self._log.pause()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Count the time again."""
        self._log.proceed()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Stop a diverged run before it overwrites a good checkpoint, and refuse a save within an update.

        Raises:
            LearnerError: A weight or an optimizer state is not finite.
            UsageError: An update is in progress.
        """
        check_is_between_updates(trainer)
        check_weights(pl_module, pl_module.updates, *trainer.optimizers)

    @property
    def _is_assessing(self) -> bool:
        """Whether an assessment is in progress. Between two updates, this is so only in a run that stops."""
        return self._policy_checkpoint is not None and self._policy_checkpoint.assessment is not None

    def _must_pause(self) -> bool:
        return self.stopping and (self.stops_directly is None or self.stops_directly())

    def _catch_up(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
        """Take the environment steps that precede the next update, and log the last update."""
        while self.updates_ahead > ROUNDING or self._is_assessing:
            self._collect(trainer, module, data)
            if self._is_assessing:  # the run stops, and continues here when it is resumed
                return
        if is_log_due(trainer, module):
            self._log.write(trainer, module, varying_settings(module, data, self.exploration_noise))

    def _collect(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
        """Collect `collect` steps, or steps until an episode or an assessment ends."""
        if self._policy_checkpoint is not None:
            assess = self._policy_checkpoint.assess
            assess(trainer, module, data, lambda: self._step_before_update(trainer, module, data), self._must_pause)
            return
        start, episodes, complete = module.env_steps, module.episodes, False
        while not complete:
            self._step_before_update(trainer, module, data)
            if self.collect == "episode":
                complete = module.episodes > episodes
                if not complete and module.env_steps - start >= MAX_EPISODE_STEPS * data.num_envs:
                    raise EnvError(
                        f"{data.env_id} must end an episode within {MAX_EPISODE_STEPS:,} steps if collector.collect is "
                        "episode, got none. Use a number for collector.collect, or set max_episode_steps in "
                        "data.train_kwargs."
                    )
            else:
                complete = module.env_steps - start >= int(self.collect)

    def _step_before_update(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> Step:
        """Step all environments once after the warm-up, so that updates are due."""
        start = module.env_steps
        try:
            return self._step(trainer, module, data)
        finally:  # a stored step counts, even if its episode cannot be logged
            self.updates_ahead -= (module.env_steps - start) * data.updates_per_step(start)

    def _act(self, module: TD3, data: ReplayData) -> NDArray[np.float32]:
        """Return actions (num_envs, action_dim): random ones, or the policy's with noise, clipped to the box."""
        low, high = module.action_box
        if module.env_steps < self.random_steps:
            return self.rng.uniform(low, high, (data.num_envs, len(low))).astype(np.float32)
        action = module.act(data.envs.obs)
        check_action(action, module.updates)
        normal = self.rng.standard_normal(action.shape, dtype=np.float32)
        return with_noise(action, normal, self.exploration_noise(module.env_steps), module.action_box)

    def _step(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> Step:
        """Step all environments once and store the transitions."""
        if not data.envs.is_stepping:
            data.envs.begin(self._act(module, data))
        step = data.envs.finish()
        rows = zip(step.obs, step.action, step.reward, step.terminated, step.truncated, step.last_obs, strict=True)
        for env, row in enumerate(rows):
            if step.resets is None or not step.resets[env]:
                data.replay.add(env, *row)
        self._unseen.add(module, data, step)
        self.env_steps = module.env_steps = module.env_steps + len(step.stepped)
        for report in step.reports:
            module.episodes += 1
            self.last_return = report["return"]
            log_values(trainer, module, report)
        return step

    def state_dict(self) -> dict[str, Any]:
        """Return each rank's random generator, clock, update balance, last return, losses and unseen statistics."""
        return {"ranks": gather_from_ranks(self._state)}

    def _state(self) -> dict[str, Any]:
        return {
            "rng": self.rng.bit_generator.state,
            "env_steps": self.env_steps,
            "updates_ahead": self.updates_ahead,
            "last_return": self.last_return,
            **self._log.state_dict(),
            **self._unseen.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of this rank. Keep the current state if the number of ranks has changed."""
        own = select_rank(state["ranks"])
        if own is not None:
            self.rng.bit_generator.state, self.env_steps = own["rng"], own.get("env_steps")
            self.updates_ahead, self.last_return = own["updates_ahead"], own["last_return"]
            self._log.load_state_dict(own)
            self._unseen.load_state_dict(own)


def _module_and_data(trainer: L.Trainer) -> tuple[TD3, ReplayData]:
    """Return the trainer's `TD3` and `ReplayData`, or raise `UsageError` if it has others."""
    module, data = trainer.lightning_module, trainer.datamodule  # type: ignore[attr-defined]  # set without a type
    if not (isinstance(module, TD3) and isinstance(data, ReplayData)):
        raise UsageError(
            f"The Collector requires a TD3 with a ReplayData, got {type(module).__name__} with {type(data).__name__}. "
            "Use trainer.fit(TD3(...), datamodule=ReplayData(...))."
        )
    return module, data

"""The callback that steps the training environments and fills the replay."""

import time
from typing import Any, Literal

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.algorithm.distributed import check_launcher, gather_from_ranks, select_rank
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.episode import MOST_STEPS
from td3_lightning.errors import EnvError, UsageError, refuse, require_int
from td3_lightning.schedules import Constant, Schedule, as_schedule, check_schedule
from td3_lightning.seeding import derive_seed
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.denormals import FLUSH_INTERVAL, flush_denormals
from td3_lightning.training.divergence import check_action, check_losses, check_weights

ROUNDING = 1e-9  # of the updates that are due for some steps, summed up


class Collector(Callback):
    """Random warm-up, then the policy with Gaussian noise; step, add, sample, update, as in the paper.

    Args:
        warmup_steps: Environment steps before the first update.
        exploration_noise: Standard deviation of the noise, in half-widths of the action box, or a schedule.
        random_steps: Environment steps with uniform random actions; those of the warm-up if none are given.
        collect: What is collected between updates: at least so many steps at once, or "episode" for steps until an
            episode ends. The updates that are due for it follow it.

    Raises:
        UsageError: A setting is out of its range, which the sentence gives.
    """

    def __init__(
        self,
        warmup_steps: int = 25_000,
        exploration_noise: float | Schedule = 0.1,
        random_steps: int | None = None,
        collect: int | Literal["episode"] = 1,
    ) -> None:
        super().__init__()
        fix = "Use at least 1, because the first update requires a transition."
        self.warmup_steps = require_int("warmup_steps", warmup_steps, least=1, fix=fix)
        random_steps = self.warmup_steps if random_steps is None else random_steps
        self.random_steps = require_int("random_steps", random_steps, least=0)
        if isinstance(collect, str) and collect != "episode":
            raise refuse("collect", 'a number of steps or "episode"', collect, "Use 1, for example.")
        self.collect = "episode" if isinstance(collect, str) else require_int("collect", collect, least=1)
        self.exploration_noise = as_schedule(exploration_noise, "exploration_noise")
        check_schedule("exploration_noise", self.exploration_noise)
        self.rng = np.random.default_rng(derive_seed("exploration"))
        self.updates_ahead = 0.0  # of the environment steps that they are due for
        self.last_return = float("nan")
        self.stopping = False  # leaves the warm-up, for a run that is to be saved and stopped
        self._losses: dict[str, Tensor] = {}
        self._clock = (0, 0.0)  # env_steps and seconds at the last log

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuses processes that would all act alike, and an agent for another environment."""
        check_launcher(trainer)
        if stage == "fit" or isinstance(trainer.datamodule, ReplayData):  # type: ignore[attr-defined]  # as below
            module, data = _parts(trainer)
            _check_fit(module, data)
            if stage == "fit":
                _check_learns(module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begins the episodes, and warms up; a resumed run has both behind it.

        The actions are random, or the policy's where it has learned already and the replay alone is new.
        """
        module, data = _parts(trainer)
        # A checkpoint that lacks its replay is another thing, of which sampling complains.
        begun = data.replay.steps_before + data.replay.steps_stored > 0
        fills = data.empty_replay or begun or trainer.ckpt_path is None
        if not data.replay.steps_stored:
            data.replay.steps_before = module.env_steps
        elif not module.env_steps:
            rank_zero_warn(
                f"A new agent also learns from {data.replay.num_transitions:,} transitions that the replay holds from "
                "before; make another ReplayData for it if that is not wanted."
            )
        if not len(data.envs.obs):
            data.begin_episodes()
        while self._is_short(module, data, fills) and not self.stopping:
            self._step(trainer, module, data)
        self._clock = (module.env_steps, time.perf_counter())

    def _is_short(self, module: TD3, data: ReplayData, fills: bool) -> bool:
        """Whether a run that begins, or a replay that is to be filled, has too few steps for an update."""
        return module.env_steps < self.warmup_steps or (fills and data.replay.steps_stored < self.warmup_steps)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Takes the steps that the next update waits for, and logs the update that was."""
        module, data = _parts(trainer)
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning sets it without a type
        logs = bool(every) and module.updates % every == 0
        if logs or module.device.type == "cpu":  # a GPU would have to be waited for
            check_losses(outputs, module.updates)
        if module.updates % FLUSH_INTERVAL == 0:
            for optimizer in trainer.optimizers:
                flush_denormals(optimizer)
        self.updates_ahead += 1
        while self.updates_ahead > ROUNDING:
            begin = module.env_steps
            try:
                self._collect(trainer, module, data)
            finally:  # what came before an environment failed is stored, and wants its updates
                self.updates_ahead -= (module.env_steps - begin) * data.updates_per_step
        self._losses.update(outputs)
        if logs:
            self._log_losses(trainer, module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Has nothing judged that has diverged."""
        module, _ = _parts(trainer)
        check_weights(module, module.updates)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Raise `LearnerError` rather than save a module that has diverged."""
        module, _ = _parts(trainer)
        check_weights(module, module.updates, *trainer.optimizers)

    def _collect(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
        """Collects a round."""
        begin, episodes, complete = module.env_steps, module.episodes, False
        while not complete:
            self._step(trainer, module, data)
            if self.collect == "episode":
                complete = module.episodes > episodes
                if not complete and module.env_steps - begin >= MOST_STEPS * data.num_envs:
                    raise EnvError(
                        f"{data.env_id} came to no end of an episode within {MOST_STEPS:,} steps, for which "
                        "collector.collect waits; give that a number, or data.train_kwargs max_episode_steps."
                    )
            else:
                complete = module.env_steps - begin >= int(self.collect)

    def _act(self, module: TD3, data: ReplayData) -> NDArray[np.float32]:
        """Random actions (num_envs, action_dim), or the policy's with noise, clipped to the box."""
        low, high = module.action_box
        if module.env_steps < self.random_steps:
            return self.rng.uniform(low, high, (data.num_envs, len(low))).astype(np.float32)
        action = module.act(data.envs.obs)
        check_action(action, module.updates)
        noise = self.rng.standard_normal(action.shape, dtype=np.float32) * (high - low) / 2
        noisy = action + np.float32(self.exploration_noise(module.env_steps)) * noise
        clipped: NDArray[np.float32] = np.minimum(np.maximum(noisy, low), high)  # np.clip takes three times as long
        return clipped

    def _step(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
        """Steps all environments once, and stores what came."""
        obs, action = data.envs.obs, self._act(module, data)
        step = data.envs.step(action)
        rows = zip(obs, action, step.reward, step.terminated, step.truncated, step.last_obs, strict=True)
        for env, row in enumerate(rows):
            data.replay.add(env, *row)
        module.env_steps += data.num_envs
        for report in step.reports:
            module.episodes += 1
            self.last_return = report["return"]
            self._log(trainer, module, report)

    def _log_losses(self, trainer: L.Trainer, module: TD3) -> None:
        """Logs the last losses, what a schedule stands at, and the speed since the last time."""
        steps, seconds = self._clock
        self._clock = (module.env_steps, time.perf_counter())
        speed = (module.env_steps - steps) / max(self._clock[1] - seconds, 1e-9)
        losses = {name: value.item() for name, value in self._losses.items()}
        rates = {
            "actor_lr": module.settings.actor_lr,
            "critic_lr": module.settings.critic_lr,
            "noise": self.exploration_noise,
        }
        scheduled = {name: at(module.env_steps) for name, at in rates.items() if not isinstance(at, Constant)}
        self._log(trainer, module, losses | scheduled | {"steps_per_second": speed})

    def _log(self, trainer: L.Trainer, module: TD3, values: dict[str, float]) -> None:
        for logger in trainer.loggers:
            logger.log_metrics({f"train/{name}": value for name, value in values.items()}, module.env_steps)

    def state_dict(self) -> dict[str, Any]:
        """The generator of random actions and noise, how far the updates are, and what the bar and the logs show."""
        return {"ranks": gather_from_ranks(self._state)}

    def _state(self) -> dict[str, Any]:
        return {
            "rng": self.rng.bit_generator.state,
            "updates_ahead": self.updates_ahead,
            "last_return": self.last_return,
            "losses": {name: loss.cpu() for name, loss in self._losses.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts this rank's back; a warm start with another number of ranks keeps what it has."""
        own = select_rank(state["ranks"])
        if own is not None:
            self.rng.bit_generator.state = own["rng"]
            self.updates_ahead, self.last_return = own["updates_ahead"], own["last_return"]
            self._losses = dict(own["losses"])


def _parts(trainer: L.Trainer) -> tuple[TD3, ReplayData]:
    """The trainer's module and datamodule, which have to be ours."""
    module, data = trainer.lightning_module, trainer.datamodule  # type: ignore[attr-defined]  # set without a type
    if not (isinstance(module, TD3) and isinstance(data, ReplayData)):
        raise UsageError(
            f"The Collector steps a ReplayData for a TD3, but the trainer has {type(data).__name__} and "
            f"{type(module).__name__}; call trainer.fit(TD3(...), datamodule=ReplayData(...))."
        )
    return module, data


def _check_learns(module: TD3) -> None:
    """Raises `UsageError` if the actor or the critics have nothing to learn with."""
    for name, network in (("actor", module.actor), ("critics", module.critics)):
        if not any(weight.requires_grad for weight in network.parameters()):
            raise UsageError(
                f"The {name} would learn nothing: no weight wants a gradient, as after agent.freeze(); call "
                "agent.unfreeze() before fit."
            )


def _check_fit(module: TD3, data: ReplayData) -> None:
    """Raises `UsageError` if the agent is not for the environment's observations and actions."""
    came: list[Any] = [module.hparams[name] for name in ("obs_dim", "action_low", "action_high")]
    wanted: list[Any] = [data.obs_dim, data.action_low, data.action_high]
    if not all(np.array_equal(np.float32(one), np.float32(other)) for one, other in zip(came, wanted, strict=True)):
        raise UsageError(
            f"The agent has obs_dim, action_low and action_high {came}, but {data.env_id} has {wanted}; make it with "
            "TD3(data.obs_dim, data.action_low, data.action_high)."
        )

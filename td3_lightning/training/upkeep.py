"""Work around the updates and the steps: checks, statistics, priorities and logs."""

import time
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Adam, Optimizer

from td3_lightning.algorithm.normalization import RunningNormalizer
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.vector_env import Step
from td3_lightning.errors import UsageError
from td3_lightning.schedules import Schedule, varies
from td3_lightning.training import run_checks
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.divergence import check_losses, check_weights

FLUSH_INTERVAL = 50  # updates
RESET_INTERVAL = 250  # updates; that of the authors' TD7
TD_ERROR = "td_error"  # name in the outputs of a training step
TINY = torch.finfo(torch.float32).tiny  # smallest normal float32


class UnseenObservations:
    """Collect each stored observation once, and pass all of them to the agent's normalizer before the next update.

    The statistics therefore change only with the weights: a policy does not change within the episodes that are
    collected with it.
    """

    def __init__(self) -> None:
        self.rows: list[NDArray[np.float32]] = []  # (n, obs_dim) each

    def add(self, step: Step) -> None:
        """Add the observations before a step, and the last ones of the episodes that it ends."""
        self.rows.append(step.obs if step.resets is None else step.obs[~step.resets])
        ends = np.logical_or(step.terminated, step.truncated)
        if ends.any():
            self.rows.append(step.last_obs[ends])

    def pass_to(self, module: TD3) -> None:
        """Update the normalizer of an agent that has one. Every process must call this method."""
        if isinstance(module.normalizer, RunningNormalizer):
            none = np.empty((0, module.obs_dim), np.float32)
            module.normalizer.update(torch.from_numpy(np.concatenate([none, *self.rows])))
            self.rows = []


class UpdateLog:
    """Log the last losses, the scheduled values and the speed since the previous log, without the evaluations."""

    def __init__(self) -> None:
        self.losses: dict[str, Tensor] = {}
        self._clock = (0, 0.0)  # the agent's clock and seconds at the last log
        self._pause = 0.0  # seconds at the start of the last evaluation

    def start(self, module: TD3) -> None:
        """Measure the speed from now on."""
        self._clock = (module.clock, time.perf_counter())

    def pause(self) -> None:
        """Do not count the time until `proceed`."""
        self._pause = time.perf_counter()

    def proceed(self) -> None:
        """Count the time again."""
        start, seconds = self._clock
        self._clock = (start, seconds + time.perf_counter() - self._pause)

    def write(self, trainer: L.Trainer, module: TD3, schedules: dict[str, Schedule]) -> None:
        """Log the values. The schedules have the names of their settings."""
        start, seconds = self._clock
        self.start(module)
        speed = (module.clock - start) / max(self._clock[1] - seconds, 1e-9)
        values = {name: float(value) for name, value in self.losses.items()}
        for name, schedule in schedules.items():
            values[name.split(".")[-1].removeprefix("exploration_")] = schedule(module.env_steps)
        log_values(trainer, module, values | {f"{module.clock_name.removeprefix('env_')}_per_second": speed})


class Upkeep:
    """Call what each update and each step require besides themselves. The schedule of the noise is logged."""

    def __init__(self, noise: Schedule) -> None:
        self._noise = noise
        self.unseen, self.log = UnseenObservations(), UpdateLog()

    def setup(self, trainer: L.Trainer, stage: str, collector: Any) -> None:
        """Check that the parts of a run fit together.

        Raises:
            UsageError: They do not.
        """
        run_checks.check_launcher(trainer)
        if stage != "fit" and not isinstance(trainer.datamodule, ReplayData):  # type: ignore[attr-defined]
            return
        module, data = run_checks.module_and_data(trainer)
        if stage != "fit":
            return
        run_checks.check_callbacks(trainer.callbacks, collector)  # type: ignore[attr-defined]
        run_checks.check_agent(module, data)
        run_checks.check_collection(collector, data, trainer)
        if data.offline:
            run_checks.check_offline(trainer, varying_settings(module, data, self._noise))
        run_checks.check_owners(trainer.callbacks, module, data)  # type: ignore[attr-defined]

    def begin(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
        """Add the dataset to the statistics, once, and measure the speed from now on."""
        if data.dataset is not None and module.settings.normalize_observations:
            obs = data.dataset.observations_for(module)
            if trainer.is_global_zero:  # the statistics are those of all processes
                self.unseen.rows.append(obs)
        self.log.start(module)

    def after_update(self, trainer: L.Trainer, module: TD3, data: ReplayData, outputs: dict[str, Any]) -> None:
        """Check the losses, set the priorities, flush denormals, and remember the losses for the log.

        Raises:
            LearnerError: A loss is not finite.
        """
        losses = {name: value for name, value in outputs.items() if name != TD_ERROR}
        flush = module.updates % FLUSH_INTERVAL == 0
        if module.device.type == "cpu" or flush or is_log_due(trainer, module):  # reading from a GPU synchronizes
            check_losses(losses, module.updates)
        if (priorities := data.replay.priorities) is not None:
            priorities.update(outputs[TD_ERROR])
            if module.updates % (module.settings.target_update_freq or RESET_INTERVAL) == 0:
                priorities.reset_max_priority()  # of new transitions
        if flush:
            for optimizer in trainer.optimizers:
                flush_denormals(optimizer)
        self.log.losses.update(losses)

    def write_log(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
        """Log the last losses, the speed and the values of schedules, if this is due."""
        if is_log_due(trainer, module):
            self.log.write(trainer, module, varying_settings(module, data, self._noise))

    def after_step(self, trainer: L.Trainer, module: TD3, step: Step) -> None:
        """Count and log the episodes that ended in a step."""
        for report in step.reports:
            module.episodes += 1
            log_values(trainer, module, report)

    def before_evaluation(self, module: L.LightningModule) -> None:
        """Stop a diverged run before it is evaluated. The logged speed excludes the evaluation."""
        if isinstance(module, TD3):  # validate accepts other modules, and other data
            check_weights(module, module.updates)
        self.log.pause()

    def before_save(self, trainer: L.Trainer, module: TD3) -> None:
        """Stop a diverged run before it overwrites a good checkpoint, and refuse a save within an update.

        Raises:
            LearnerError: A weight or an optimizer state is not finite.
            UsageError: An update is running, or an exception has ended it, whose state cannot be saved.
        """
        updates: Any = trainer.fit_loop.epoch_loop.batch_progress
        begun = updates.current.started if trainer.interrupted else updates.current.ready
        if begun > updates.current.processed:
            raise UsageError(
                f"A checkpoint must be saved between two updates, got a save within update {updates.total.ready:,}. "
                "Use on_train_batch_end."
            )
        check_weights(module, module.updates, *trainer.optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Return the losses, and the observations that the agent has not seen if there are any.

        Moments of the observations would depend on when the run was stopped.
        """
        losses = {"losses": {name: torch.as_tensor(loss).cpu() for name, loss in self.log.losses.items()}}
        rows = self.unseen.rows
        return {**losses, "observations": torch.from_numpy(np.concatenate(rows))} if rows else losses

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the losses and the observations."""
        self.log.losses = dict(state["losses"])
        self.unseen.rows = [state["observations"].numpy()] if "observations" in state else []


@torch.no_grad()
def flush_denormals(optimizer: Optimizer) -> None:
    """Set denormal numbers (below 1e-38) in Adam's state to zero, because CPUs compute much more slowly with them.

    The gradient of a weight of a dormant unit is 0, and Adam's averages of it are denormal after about 800 updates.
    `torch.set_flush_denormal` reaches the calling thread only (torch 2.13), not the threads that run Adam. No weight
    above 1e-22 changes: Adam divides by at least its eps of 1e-8, so the step is below 1e-29. Other optimizers are not
    changed: the step of one that uses the sign of a mean does not depend on its size.
    """
    if not isinstance(optimizer, Adam):
        return
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim:
                torch.hardshrink(value, TINY, out=value)


def varying_settings(module: TD3, data: ReplayData, noise: Schedule) -> dict[str, Schedule]:
    """Return the schedules of a run that are not constant, by the names of their settings."""
    schedules = {f"model.{name}": schedule for name, schedule in vars(module.settings).items()}
    replay = data.replay
    schedules |= {"data.n_step": replay.n_step_schedule, "data.gamma": replay.gamma_schedule}
    schedules |= {"data.updates_per_step": data.updates_per_step, "collector.exploration_noise": noise}
    return {name: schedule for name, schedule in schedules.items() if varies(schedule)}


def is_log_due(trainer: L.Trainer, module: TD3) -> bool:
    """Return whether the last update is logged."""
    every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning sets it without a type
    return bool(every) and module.updates % every == 0


def log_values(trainer: L.Trainer, module: TD3, values: dict[str, float]) -> None:
    """Pass values of the training to every logger."""
    for logger in trainer.loggers:
        logger.log_metrics({f"train/{name}": value for name, value in values.items()}, module.clock)

"""Work around the updates and the steps: checks, statistics, priorities and logs."""

from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.vector_env import Step
from td3_lightning.errors import UsageError
from td3_lightning.replay.buffer import Replay
from td3_lightning.schedules import Schedule
from td3_lightning.training import run_checks
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.divergence import check_losses, check_weights
from td3_lightning.training.last_agent import LastAgent
from td3_lightning.training.normalizer_inputs import UnseenObservations
from td3_lightning.training.update_log import UpdateLog, is_log_due, log_values, varying_settings

FLUSH_INTERVAL = 50  # updates
RESET_INTERVAL = 250  # updates; that of the authors' TD7
TD_ERROR = "td_error"  # name in the outputs of a training step
TINY = torch.finfo(torch.float32).tiny  # smallest normal float32


class Upkeep:
    """Call what each update and each step require besides themselves. Each part has its own file.

    Args:
        noise: Exploration noise, whose schedule is logged.
    """

    def __init__(self, noise: Schedule) -> None:
        self._noise, self._last = noise, LastAgent()
        self.start_over()

    def start_over(self) -> None:
        """Forget the losses and the statistics of another agent."""
        self.unseen, self.log = UnseenObservations(), UpdateLog()

    def setup(self, trainer: L.Trainer, stage: str, collector: Any) -> bool:
        """Check that the parts of a run fit together. Return whether this is the fit of another agent.

        Raises:
            UsageError: They do not.
        """
        run_checks.check_trainer(trainer, stage, collector)
        if stage != "fit" and not isinstance(trainer.datamodule, ReplayData):  # type: ignore[attr-defined]
            return False
        module, data = run_checks.module_and_data(trainer)
        run_checks.check_dimensions(module, data)
        if stage != "fit":
            return False
        is_other = self._last.has_changed(module)
        run_checks.check_agent(module, data)
        run_checks.check_collection(collector, data, trainer)
        if data.offline:
            run_checks.check_offline(trainer, varying_settings(module, data, self._noise))
        return is_other

    def begin(self, trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
        """Add the dataset to the statistics, once, and measure the speed from now on."""
        if data.dataset is not None and module.settings.normalize_observations:
            obs = data.dataset.observations_for(module)
            if trainer.is_global_zero:  # the statistics are those of all processes
                self.unseen.add_dataset(obs)
        self.unseen.check(module)
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
        update_priorities(module, data.replay, outputs)
        if flush:
            for optimizer in trainer.optimizers:
                flush_denormals(optimizer)
        self.log.add(losses)

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
            UsageError: An update is in progress.
        """
        check_is_between_updates(trainer)
        check_weights(module, module.updates, *trainer.optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Return the losses and the statistics that the agent has not seen."""
        return {**self.log.state_dict(), **self.unseen.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the losses and the statistics."""
        self.log.load_state_dict(state)
        self.unseen.load_state_dict(state)


def update_priorities(module: TD3, replay: Replay, outputs: Mapping[str, Tensor]) -> None:
    """Set the priorities of the last batch, if the replay is prioritized, before the next batch is sampled.

    The priority of new transitions is reset every `target_update_freq` updates, or every 250 without that setting.
    """
    if replay.priorities is None:
        return
    replay.priorities.update(outputs[TD_ERROR])
    if module.updates % (module.settings.target_update_freq or RESET_INTERVAL) == 0:
        replay.priorities.reset_max_priority()


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


def check_is_between_updates(trainer: L.Trainer) -> None:
    """Raise `UsageError` if an update is running, whose state cannot be saved, and no exception has ended it."""
    updates: Any = trainer.fit_loop.epoch_loop.batch_progress
    if not trainer.interrupted and updates.current.ready > updates.current.processed:
        raise UsageError(
            f"A checkpoint must be saved between two updates, got a save within update {updates.total.ready:,}. Use "
            "on_train_batch_end."
        )

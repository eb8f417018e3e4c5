"""Values that the Collector logs."""

import time
from typing import Any

import lightning as L
from torch import Tensor

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.schedules import Schedule, varies
from td3_lightning.training.data_module import ReplayData


class UpdateLog:
    """Log the last losses, the scheduled values and the speed since the previous log."""

    def __init__(self) -> None:
        self._losses: dict[str, Tensor] = {}
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

    def add(self, losses: dict[str, Tensor]) -> None:
        """Replace the losses of the same names."""
        self._losses.update(losses)

    def write(self, trainer: L.Trainer, module: TD3, schedules: dict[str, Schedule]) -> None:
        """Log the values.

        Args:
            trainer: Trainer with the loggers.
            module: Agent.
            schedules: Schedules whose current values are logged, by the names of their settings.
        """
        start, seconds = self._clock
        self.start(module)
        speed = (module.clock - start) / max(self._clock[1] - seconds, 1e-9)
        unit = module.clock_name.removeprefix("env_")
        losses = {name: value.item() for name, value in self._losses.items()}
        scheduled = {_log_name(name): schedule(module.env_steps) for name, schedule in schedules.items()}
        log_values(trainer, module, losses | scheduled | {f"{unit}_per_second": speed})

    def state_dict(self) -> dict[str, Any]:
        """Return the losses."""
        return {"losses": {name: loss.cpu() for name, loss in self._losses.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the losses."""
        self._losses = dict(state["losses"])


def varying_settings(module: TD3, data: ReplayData, noise: Schedule) -> dict[str, Schedule]:
    """Return the schedules of a run that are not constant, by the names of their settings.

    Args:
        module: Agent.
        data: Data module.
        noise: Exploration noise of the Collector.
    """
    schedules = {f"model.{name}": schedule for name, schedule in module.settings.varying.items()}
    replay = data.replay
    schedules |= {"data.n_step": replay.n_step_schedule, "data.gamma": replay.gamma_schedule}
    schedules |= {"data.updates_per_step": data.updates_per_step, "collector.exploration_noise": noise}
    return {name: schedule for name, schedule in schedules.items() if varies(schedule)}


def _log_name(setting: str) -> str:
    return setting.split(".")[-1].removeprefix("exploration_")


def is_log_due(trainer: L.Trainer, module: TD3) -> bool:
    """Return whether the last update is logged."""
    every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning sets it without a type
    return bool(every) and module.updates % every == 0


def log_values(trainer: L.Trainer, module: TD3, values: dict[str, float]) -> None:
    """Pass values of the training to every logger."""
    for logger in trainer.loggers:
        logger.log_metrics({f"train/{name}": value for name, value in values.items()}, module.clock)

"""Training epoch loop that calls only the hooks that are overridden.

For every batch, Lightning calls each hook of every callback, the module, the datamodule, the strategy and the loggers,
and collects logged values. This loop calls the implemented hooks in the same order, with the same results.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.profilers import PassThroughProfiler

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.fast.eligibility import is_plain_trainer, overrides
from td3_lightning.training.data_module import ReplayData

SUPPORTED_LIGHTNING = "2.6."  # written for the private names of these versions
TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class HookPlan(NamedTuple):
    """The hooks to call for each update of an epoch."""

    attributes: dict[str, Any]  # of the module: nn.Module.__setattr__ is slower
    starts: list[Callable[..., Any]]  # before the update
    step: Callable[..., Any]  # the update
    ends: list[Callable[..., Any]]  # after the update
    batch_on_device: bool  # whether the batch needs no transfer


class FastTrainingLoop(_TrainingEpochLoop):
    """Lightning's loop with the same updates, hooks and counts in less time.

    It falls back to Lightning's loop for the first update of a resumed run, several processes, a profiler, automatic
    optimization, and other versions of Lightning.
    """

    _plan: HookPlan | None = None

    @classmethod
    def install(cls, trainer: L.Trainer) -> None:
        """Replace the loop of a trainer that has not started."""
        if L.__version__.startswith(SUPPORTED_LIGHTNING):
            usual = trainer.fit_loop.epoch_loop
            trainer.fit_loop.epoch_loop = cls(trainer, usual.min_steps, usual.max_steps)

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        """Begin an epoch: look up its hooks."""
        super().on_run_start(data_fetcher)
        self._plan = _plan(self.trainer) if _is_supported(self.trainer) else None
        if self._plan is not None:
            data_fetcher._start_profiler = data_fetcher._stop_profiler = lambda: None

    def advance(self, data_fetcher: _DataFetcher) -> None:
        """Run one update with its hooks."""
        plan, trainer = self._plan, self.trainer
        if plan is None or self.restarting:
            super().advance(data_fetcher)
            return
        if self.val_loop.restarting:
            self.val_loop.restarting = False
        batch, _, _ = next(data_fetcher)
        progress, batch_idx = self.batch_progress, self.batch_idx + 1
        progress.is_last_batch = data_fetcher.done
        batch = trainer.precision_plugin.convert_input(batch)
        if not plan.batch_on_device:
            batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
            batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        progress.increment_ready()
        self._begin_batch(batch)
        if _call(plan, "on_train_batch_start", plan.starts, batch, batch_idx) == -1:  # the rest of the epoch is skipped
            progress.increment_by(0, is_last_batch=True)
            progress.increment_processed()
            raise StopIteration
        progress.increment_started()
        self.manual_optimization.on_run_start()
        outputs = _call(plan, "training_step", [plan.step], batch, batch_idx)
        self.manual_optimization.on_run_end()
        progress.increment_processed()
        _call(plan, "on_train_batch_end", plan.ends, outputs, batch, batch_idx)
        if self._results:  # pass logged values to the loggers
            trainer._logger_connector.on_batch_end()
            trainer._logger_connector.update_train_step_metrics()
        progress.increment_completed()

    def on_advance_end(self, data_fetcher: _DataFetcher) -> None:
        """Count the update; leave evaluations and stops to Lightning."""
        trainer = self.trainer
        stops = trainer.should_stop or trainer.received_sigterm
        if self._plan is None or stops or not (self.batch_idx + 1) % trainer.val_check_batch:
            super().on_advance_end(data_fetcher)
        else:
            self._batches_that_stepped += 1

    @property
    def _is_training_done(self) -> bool:
        """Whether the epoch is over; without max_steps, Adam's steps need not be counted."""
        return self._num_ready_batches_reached() if self.max_steps == -1 else super()._is_training_done

    def _begin_batch(self, batch: Any) -> None:
        """Assign the batch to the values that will be logged."""
        connector = self.trainer._logger_connector
        if connector._first_loop_iter is False:  # from the second batch on
            self._results.batch, self._results.batch_size = batch, None
        else:
            connector.on_batch_start(batch)


def _call(plan: HookPlan, name: str, hooks: list[Callable[..., Any]], *args: Any) -> Any:
    """Call hooks of one name and return the last result."""
    result, before = None, plan.attributes["_current_fx_name"]
    plan.attributes["_current_fx_name"] = name  # `log` reads it
    for hook in hooks:
        result = hook(*args)
    plan.attributes["_current_fx_name"] = before
    return result


def _is_supported(trainer: Any) -> bool:
    """Return whether one process trains a TD3, and evaluations are counted in the epoch's batches."""
    module = trainer.lightning_module
    ours = isinstance(module, TD3) and not module.automatic_optimization
    by_batches = trainer.check_val_every_n_epoch is not None and isinstance(trainer.val_check_batch, int)
    return ours and is_plain_trainer(trainer) and by_batches and isinstance(trainer.profiler, PassThroughProfiler)


def _plan(trainer: Any) -> HookPlan:
    callbacks, strategy = trainer.callbacks, trainer.strategy
    module, data = trainer.lightning_module, trainer.datamodule
    hooks: list[list[Callable[..., Any]]] = [
        [partial(getattr(each, name), trainer, module) for each in callbacks if overrides(each, Callback, name)]
        for name in ("on_train_batch_start", "on_train_batch_end")
    ]
    starts, ends = hooks
    starts.append(module.on_train_batch_start)
    if overrides(module, L.LightningModule, "on_train_batch_end"):
        ends.append(module.on_train_batch_end)
    # strategy.training_step adds the precision's context, none in float32, and calls a compiled or wrapped module.
    direct = type(trainer.precision_plugin) is Precision and strategy.model is module
    step = module.training_step if direct else strategy.training_step
    ours = isinstance(data, ReplayData) and not overrides(data, ReplayData, *TRANSFER_HOOKS)
    unhooked = ours and not overrides(module, L.LightningModule, *TRANSFER_HOOKS)
    return HookPlan(vars(module), starts, step, ends, unhooked and strategy.root_device.type == "cpu")

"""The Trainer's loop over an epoch's updates, without the way to them where nobody waits on that way.

For every batch Lightning asks each callback, the module, the datamodule, the strategy and the loggers for hooks that
most of them do not have, and collects what was logged where nothing was. Here those hooks are called that are there,
in the same order. A reader may skip this file.
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
from lightning.pytorch.strategies import SingleDeviceStrategy

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.fast.eligibility import PLAIN_PRECISION, overrides
from td3_lightning.training.data_module import ReplayData

KNOWN = "2.6."  # the Lightning whose loop this one is like


TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class HookPlan(NamedTuple):
    """What is called for an update."""

    callbacks: list[Any]  # the trainer's, in which the hooks were found
    attributes: dict[str, Any]  # the module's, as setting one of a module takes longer
    starts: list[Callable[..., Any]]  # for each batch, before its update
    step: Callable[..., Any]  # the update
    ends: list[Callable[..., Any]]  # after it
    stays: bool  # whether a batch is used where it was sampled


class FastTrainingLoop(_TrainingEpochLoop):
    """Lightning's loop, with the same updates, hooks and counts in less time.

    It leaves to Lightning's what it does not know: the first update of a resumed run, several processes, a profiler,
    a module that changes what a training step is, another version.
    """

    _way: HookPlan | None = None

    @classmethod
    def install(cls, trainer: L.Trainer) -> None:
        """Has a trainer that has not begun take this loop."""
        if L.__version__.startswith(KNOWN):
            usual = trainer.fit_loop.epoch_loop
            trainer.fit_loop.epoch_loop = cls(trainer, usual.min_steps, usual.max_steps)

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        """Begins an epoch."""
        super().on_run_start(data_fetcher)
        self._way = _find_way(self.trainer) if _is_plain(self.trainer) else None
        if self._way is not None:
            data_fetcher._start_profiler = data_fetcher._stop_profiler = _do_nothing

    def advance(self, data_fetcher: _DataFetcher) -> None:
        """Takes an update, and calls what is called around it."""
        way, trainer = self._way, self.trainer
        if way is None or self.restarting:
            super().advance(data_fetcher)
            return
        if way.callbacks != trainer.callbacks:
            way = self._way = _find_way(trainer)
        if self.val_loop.restarting:
            self.val_loop.restarting = False
        batch, _, _ = next(data_fetcher)
        progress, batch_idx = self.batch_progress, self.batch_idx + 1
        progress.is_last_batch = data_fetcher.done
        batch = trainer.precision_plugin.convert_input(batch)
        if not way.stays:
            batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
            batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        progress.increment_ready()
        self._begin_batch(batch)
        _call(way, "on_train_batch_start", way.starts, batch, batch_idx)
        progress.increment_started()
        self.manual_optimization.on_run_start()
        outputs = _call(way, "training_step", [way.step], batch, batch_idx)
        self.manual_optimization.on_run_end()
        progress.increment_processed()
        _call(way, "on_train_batch_end", way.ends, outputs, batch, batch_idx)
        self._collect_logged()
        progress.increment_completed()

    def on_advance_end(self, data_fetcher: _DataFetcher) -> None:
        """Keeps count; where an evaluation is due or the run stops, Lightning sees to it."""
        trainer = self.trainer
        stops = trainer.should_stop or trainer.received_sigterm
        if self._way is None or stops or not (self.batch_idx + 1) % trainer.val_check_batch:
            super().on_advance_end(data_fetcher)
        else:
            self._batches_that_stepped += 1

    @property
    def _is_training_done(self) -> bool:
        """Whether the epoch is over; to count Adam's steps takes longer, where they are not limited."""
        return self._num_ready_batches_reached() if self.max_steps == -1 else super()._is_training_done

    def _begin_batch(self, batch: Any) -> None:
        """Has what is logged find its batch."""
        connector = self.trainer._logger_connector
        if connector._first_loop_iter is False:  # which it stays
            self._results.batch, self._results.batch_size = batch, None
        else:
            connector.on_batch_start(batch)

    def _collect_logged(self) -> None:
        """Gives what was logged to the loggers, if anything was."""
        if self._results:
            self.trainer._logger_connector.on_batch_end()
            self.trainer._logger_connector.update_train_step_metrics()


def _call(way: HookPlan, name: str, hooks: list[Callable[..., Any]], *args: Any) -> Any:
    """Calls hooks of this name, and gives what the last one gives."""
    given, before = None, way.attributes["_current_fx_name"]
    way.attributes["_current_fx_name"] = name  # which `log` asks for
    for hook in hooks:
        given = hook(*args)
    way.attributes["_current_fx_name"] = before
    return given


def _do_nothing() -> None:
    pass


def _is_plain(trainer: Any) -> bool:
    """Whether a training step is ours, nobody but hooks has a part in it, and evaluations go by the epoch's batches."""
    module = trainer.lightning_module
    ours = isinstance(module, TD3) and not overrides(module, TD3, "training_step", "on_train_batch_start")
    alone = type(trainer.strategy) is SingleDeviceStrategy and type(trainer.precision_plugin) in PLAIN_PRECISION
    by_batches = trainer.check_val_every_n_epoch is not None and isinstance(trainer.val_check_batch, int)
    return ours and alone and by_batches and isinstance(trainer.profiler, PassThroughProfiler)


def _find_way(trainer: Any) -> HookPlan:
    callbacks, strategy = trainer.callbacks, trainer.strategy
    module, data = trainer.lightning_module, trainer.datamodule
    hooks: list[list[Callable[..., Any]]] = [
        [partial(getattr(each, name), trainer, module) for each in callbacks if overrides(each, Callback, name)]
        for name in ("on_train_batch_start", "on_train_batch_end")
    ]
    starts, ends = hooks  # what a TD3 does before an update is for several processes
    if overrides(module, TD3, "on_train_batch_end"):
        ends.append(module.on_train_batch_end)
    # The strategy adds the precision's context, which in float32 is none, and what a module was compiled or wrapped to.
    as_it_is = type(trainer.precision_plugin) is Precision and strategy.model is module
    step = module.training_step if as_it_is else strategy.training_step
    ours = isinstance(data, ReplayData) and not overrides(data, ReplayData, *TRANSFERS)
    stays = ours and not overrides(module, L.LightningModule, *TRANSFERS) and strategy.root_device.type == "cpu"
    return HookPlan(list(callbacks), vars(module), starts, step, ends, stays)

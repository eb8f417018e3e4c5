"""Checks that the parts of a run fit together, before its first step."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, WeightAveraging

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.errors import UsageError, refuse
from td3_lightning.schedules import Schedule
from td3_lightning.training.callback_owner import check_owner
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.evaluation import StopWhenSolved
from td3_lightning.training.policy_checkpoint import PolicyCheckpoint
from td3_lightning.training.weight_averaging import AveragedWeights

EVALUATION_METRICS = ("return_mean", "return_std", "return_min", "return_max", "length_mean")  # of every evaluation
WITHIN_EPOCHS = re.compile("'every_n_train_steps': [1-9]|'train_time_interval': (?!None)")  # in a state_key
_MULTIPROCESSING = "lightning.pytorch.strategies.launchers.multiprocessing"


def check_launcher(trainer: L.Trainer) -> None:
    """Refuse a strategy that forks or spawns processes.

    The random generators of this process already exist, so every copy of it would draw the same numbers.

    Raises:
        UsageError: The strategy starts its processes from this one.
    """
    kinds = type(trainer.strategy.launcher).__mro__
    if any(kind.__module__ == _MULTIPROCESSING for kind in kinds):
        raise UsageError(
            "trainer.strategy must start each process independently, got a strategy that forks or spawns them. Use "
            "ddp, in a script or on the command line."
        )


def check_callbacks(callbacks: Sequence[Callback], collector: Callback) -> None:
    """Raise `UsageError` if the callbacks of a run do not work with TD3, or not in their order."""
    for callback in callbacks:
        check_callback(callback)
        # A number of the environment may have no value in an evaluation. A misspelled metric ends the run.
        if isinstance(callback, EarlyStopping) and callback.monitor.startswith("eval/"):
            close = get_close_matches(callback.monitor.removeprefix("eval/"), EVALUATION_METRICS, cutoff=0.7)
            callback.strict = callback.strict and bool(close)
    evaluating = [each for each in callbacks if isinstance(each, AveragedWeights | PolicyCheckpoint | StopWhenSolved)]
    if len(evaluating) > 1:
        both = " and ".join(type(each).__name__ for each in evaluating)
        raise UsageError(f"{both} must not be combined, because each evaluates other weights. Use only one of them.")
    if any(isinstance(each, AveragedWeights) for each in callbacks[callbacks.index(collector) :]):
        raise UsageError(
            "AveragedWeights must precede the Collector in the callbacks, got the reverse. Change their order."
        )


def check_owners(callbacks: Sequence[Callback], module: TD3, data: ReplayData) -> None:
    """Raise `UsageError` if a callback with a state, such as EarlyStopping, has served another agent.

    The best return of a `PolicyCheckpoint` belongs to a task, too.
    """
    for callback in callbacks:
        if isinstance(callback, PolicyCheckpoint):
            check_owner(callback, module, data)
        elif type(callback).state_dict is not Callback.state_dict:
            check_owner(callback, module)


def check_callback(callback: Callback) -> None:
    """Raise `UsageError` if Lightning accepts a callback that does not do what its user expects.

    A ModelCheckpoint that saves within epochs counts the steps of all optimizers, skips intervals that an update steps
    over, names all files of an epoch after its evaluation, and ignores the time with manual optimization.
    """
    name = type(callback).__name__
    if isinstance(callback, WeightAveraging) and not isinstance(callback, AveragedWeights):
        raise UsageError(
            f"trainer.callbacks must not contain {name}, because a run that is interrupted during an evaluation "
            "would resume differently. Use td3_lightning.AveragedWeights."
        )
    if isinstance(callback, ModelCheckpoint) and WITHIN_EPOCHS.search(callback.state_key):
        raise UsageError(
            f"{name} must not have every_n_train_steps or train_time_interval, which do not count environment steps. "
            "Use every_n_epochs."
        )


def module_and_data(trainer: L.Trainer) -> tuple[TD3, ReplayData]:
    """Return the trainer's `TD3` and `ReplayData`, or raise `UsageError` if it has others or they do not fit."""
    module, data = trainer.lightning_module, trainer.datamodule  # type: ignore[attr-defined]  # set without a type
    if not (isinstance(module, TD3) and isinstance(data, ReplayData)):
        raise UsageError(
            f"The Collector requires a TD3 with a ReplayData, got {type(module).__name__} with {type(data).__name__}. "
            "Use trainer.fit(TD3(...), datamodule=ReplayData(...))."
        )
    got: list[Any] = [module.hparams[name] for name in ("obs_dim", "action_low", "action_high")]
    expected: list[Any] = [data.obs_dim, data.action_low, data.action_high]
    if not all(np.array_equal(np.float32(one), np.float32(other)) for one, other in zip(got, expected, strict=True)):
        raise UsageError(
            f"obs_dim, action_low and action_high of the agent must be those of {data.env_id}, {expected}, got {got}. "
            "Use TD3(data.obs_dim, data.action_low, data.action_high)."
        )
    return module, data


def check_collection(collector: Any, data: ReplayData, trainer: Any) -> None:
    """Raise `UsageError` if assessments or overlapped steps would not see the policy that they should see."""
    collect, warmup_steps = collector.collection.collect, collector.collection.warmup_steps
    has_assessments = any(isinstance(each, PolicyCheckpoint) for each in trainer.callbacks)
    if has_assessments:
        if trainer.world_size > 1:
            raise UsageError(f"PolicyCheckpoint requires one process, got {trainer.world_size}. Use one device.")
        if collect != 1:
            raise refuse("collect", "1 with PolicyCheckpoint", collect, "Use 1, or remove PolicyCheckpoint.")
        if (random_steps := collector.exploration.random_steps) > warmup_steps:
            constraint, fix = "at most warmup_steps with PolicyCheckpoint", f"Use {warmup_steps}, for example."
            raise refuse("random_steps", constraint, random_steps, fix)
    if data.is_overlapped and (has_assessments or collect != 1):
        constraint = "sync or async with PolicyCheckpoint or collector.collect"
        raise refuse("data.vector_env", constraint, data.vector_env, "Use async, for example.")


def check_agent(module: TD3, data: ReplayData) -> None:
    """Raise `UsageError` if the critic loss does not correct for the priorities, or the agent normalizes frames."""
    settings = module.settings
    if data.replay.priorities is not None and settings.critic_loss != "huber":
        raise UsageError(
            f"model.critic_loss must be huber if data.priority_alpha is above 0, got {settings.critic_loss}. Use "
            "--model.critic_loss huber, or --data.priority_alpha 0."
        )
    if settings.normalize_observations and data.pixels is not None:
        raise UsageError(
            "model.normalize_observations must be false with data.pixels, got true. Omit it: the encoder scales frames."
        )


def check_offline(trainer: L.Trainer, schedules: dict[str, Schedule]) -> None:
    """Raise `UsageError` if a run without environment steps has a schedule, or a callback that requires episodes."""
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it without a type
    needing = [type(each).__name__ for each in callbacks if isinstance(each, PolicyCheckpoint | StopWhenSolved)]
    for name in (*needing, *schedules):
        raise UsageError(
            f"data.dataset.offline must be false with {name}, which requires environment steps, got true. Use a "
            "number instead of a schedule, or remove the callback."
        )

"""Checks that the parts of a run fit together, before its first step."""

import re
from collections.abc import Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, ModelPruning, WeightAveraging

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.errors import UsageError, one_line, refuse
from td3_lightning.replay.buffer import Replay
from td3_lightning.schedules import Schedule
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.evaluation import StopWhenSolved
from td3_lightning.training.policy_checkpoint import PolicyCheckpoint
from td3_lightning.training.weight_averaging import AveragedWeights

EVALUATION_METRICS = ("return_mean", "return_std", "return_min", "return_max", "length_mean")  # of every evaluation
WITHIN_EPOCHS = re.compile("'every_n_train_steps': [1-9]|'train_time_interval': (?!None)")  # in a state_key
_MULTIPROCESSING = "lightning.pytorch.strategies.launchers.multiprocessing"


def check_trainer(trainer: L.Trainer, stage: str, collector: Callback) -> None:
    """Check the strategy of a Trainer and, for `fit`, the settings that would not have their usual effect.

    Raises:
        UsageError: The strategy forks or spawns processes, batches should repeat, or a callback does not work with
            TD3.
    """
    check_launcher(trainer)
    if stage == "fit":
        if (batches := trainer.overfit_batches) != 0:  # type: ignore[attr-defined]  # Lightning sets it without a type
            raise UsageError(
                f"trainer.overfit_batches must be 0.0, because batches are drawn at random, got {batches}. Use "
                "trainer.limit_train_batches for short epochs."
            )
        check_callbacks(trainer.callbacks, collector)  # type: ignore[attr-defined]  # Lightning sets it without a type
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, EarlyStopping) and callback.monitor.removeprefix("eval/") not in EVALUATION_METRICS:
                callback.strict = False  # a number of the environment may have no value in an evaluation


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
    if any(isinstance(each, AveragedWeights) for each in callbacks[callbacks.index(collector) :]):
        raise UsageError(
            "AveragedWeights must precede the Collector in the callbacks, got the reverse. Change their order."
        )


def check_callback(callback: Callback) -> None:
    """Raise `UsageError` if Lightning accepts a callback that does not do what its user expects.

    A ModelCheckpoint that saves within epochs counts the steps of all optimizers, skips intervals that an update steps
    over, names all files of an epoch after its evaluation, and ignores the time with manual optimization.
    """
    name = type(callback).__name__
    if isinstance(callback, ModelPruning):
        raise UsageError(f"trainer.callbacks must not contain {name}, because checkpoints do not contain its masks.")
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
    """Return the trainer's `TD3` and `ReplayData`, or raise `UsageError` if it has others."""
    module, data = trainer.lightning_module, trainer.datamodule  # type: ignore[attr-defined]  # set without a type
    if not (isinstance(module, TD3) and isinstance(data, ReplayData)):
        raise UsageError(
            f"The Collector requires a TD3 with a ReplayData, got {type(module).__name__} with {type(data).__name__}. "
            "Use trainer.fit(TD3(...), datamodule=ReplayData(...))."
        )
    return module, data


def check_collection(collector: Any, data: ReplayData, trainer: Any) -> None:
    """Check that assessments and overlapped steps see the policy that they should see.

    Args:
        collector: The Collector.
        data: Data module.
        trainer: Trainer with the callbacks.

    Raises:
        UsageError: Steps are collected in another way, or random actions follow the warm-up.
    """
    collect, warmup_steps = collector.collection.collect, collector.collection.warmup_steps
    has_assessments = any(isinstance(each, PolicyCheckpoint) for each in trainer.callbacks)
    if has_assessments:
        if collect != 1:
            raise refuse("collect", "1 with PolicyCheckpoint", collect, "Use 1, or remove PolicyCheckpoint.")
        if (random_steps := collector.exploration.random_steps) > warmup_steps:
            constraint, fix = "at most warmup_steps with PolicyCheckpoint", f"Use {warmup_steps}, for example."
            raise refuse("random_steps", constraint, random_steps, fix)
    if data.is_overlapped and (has_assessments or collect != 1):
        constraint = "sync or async with PolicyCheckpoint or collector.collect"
        raise refuse("data.vector_env", constraint, data.vector_env, "Use async, for example.")


def check_dimensions(module: TD3, data: ReplayData) -> None:
    """Raise `UsageError` if the agent was built for other observations or actions."""
    got: list[Any] = [module.hparams[name] for name in ("obs_dim", "action_low", "action_high")]
    expected: list[Any] = [data.obs_dim, data.action_low, data.action_high]
    if not all(np.array_equal(np.float32(one), np.float32(other)) for one, other in zip(got, expected, strict=True)):
        raise UsageError(
            f"obs_dim, action_low and action_high of the agent must be those of {data.env_id}, {expected}, got {got}. "
            "Use TD3(data.obs_dim, data.action_low, data.action_high)."
        )


def check_agent(module: TD3, data: ReplayData) -> None:
    """Check that an agent can be trained with a data module.

    Raises:
        UsageError: The agent has no trainable weight or no encoder for frames, its critic loss does not correct for the
            priorities, or it normalizes frames or rewards that it cannot normalize.
    """
    _check_trainable(module)
    _check_critic_loss(module, data.replay)
    _check_not_pixels(module, data)
    _check_takes_frames(module, data)
    _check_rewards_are_raw(module, data)


def _check_trainable(module: TD3) -> None:
    """Raise `UsageError` if the actor or the critics have no trainable weight."""
    for name, network in (("actor", module.actor), ("critics", module.critics)):
        if not any(weight.requires_grad for weight in network.parameters()):
            raise UsageError(
                f"The {name} must have a trainable weight, got only weights with requires_grad=False. Use "
                "agent.unfreeze() before fit."
            )


def _check_critic_loss(module: TD3, replay: Replay) -> None:
    """Raise `UsageError` if the replay is prioritized and the critic loss does not correct for it."""
    loss = module.settings.critic_loss
    if replay.priorities is not None and loss != "huber":
        raise UsageError(
            f"model.critic_loss must be huber if data.priority_alpha is above 0, got {loss}. Use --model.critic_loss "
            "huber, or --data.priority_alpha 0."
        )


def _check_not_pixels(module: TD3, data: ReplayData) -> None:
    """Raise `UsageError` if an agent normalizes frames."""
    if module.settings.normalize_observations and data.pixels is not None:
        raise UsageError(
            "model.normalize_observations must be false with data.pixels, got true. Omit it: the encoder scales frames."
        )


def _check_takes_frames(module: TD3, data: ReplayData) -> None:
    """Raise `UsageError` if the networks of an agent cannot compute with frames, which are bytes."""
    if data.pixels is None:
        return
    frames = torch.zeros(2, data.obs_dim, dtype=torch.uint8, device=module.device)
    try:
        with torch.no_grad():
            module.q_value(frames, module(frames))
    except RuntimeError as error:
        raise UsageError(
            "The networks must accept frames of 8-bit integers with data.pixels, got an error: "
            f"{one_line(error)[:100]}. Use TD3(..., encoder=Convolutions(...)), for example."
        ) from error


def _check_rewards_are_raw(module: TD3, data: ReplayData) -> None:
    """Raise `UsageError` if an agent normalizes rewards of a dataset, or rewards that have a factor."""
    if not module.settings.normalize_rewards:
        return
    if data.offline:
        raise UsageError(
            "model.normalize_rewards must be false with data.dataset.offline, got true. Use a constant "
            "data.reward_scale: the estimate requires environment steps."
        )
    if data.replay.reward_scale != 1:
        raise UsageError(
            f"data.reward_scale must be 1 with model.normalize_rewards, got {data.replay.reward_scale}. Omit one of "
            "them."
        )


def check_offline(trainer: L.Trainer, schedules: dict[str, Schedule]) -> None:
    """Check a run that takes no environment steps.

    Args:
        trainer: Trainer of the run.
        schedules: Settings that are schedules and not constant.

    Raises:
        UsageError: A callback requires training episodes, or a setting requires environment steps.
    """
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it without a type
    for each in callbacks:
        if isinstance(each, PolicyCheckpoint | StopWhenSolved):
            raise UsageError(
                f"data.dataset.offline must be false with {type(each).__name__}, which requires training episodes, "
                "got true. Remove the callback."
            )
    for name, schedule in schedules.items():
        raise UsageError(
            f"{name} must be a number if data.dataset.offline is true, because env_steps do not grow, got "
            f"{schedule}. Use a number."
        )

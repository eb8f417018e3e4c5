"""Checks of every part of a checkpoint."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from td3_lightning.serialization import values as form
from td3_lightning.serialization.generator_states import torch_generator
from td3_lightning.serialization.loop_states import loop_states
from td3_lightning.serialization.observation_parts import has_size
from td3_lightning.serialization.replay_states import DATA
from td3_lightning.serialization.values import InvalidValueError

SETTINGS = ("config", "hyper_parameters")
RESUMED_PARTS = ("callbacks", "optimizer_states", "lr_schedulers")  # save_weights_only leaves them out
CLOCKS = ("env_steps", "updates", "episodes")  # attributes of an agent
ALGORITHMS = ("TD3", "TD7")  # without a name, a checkpoint holds the first
VERSION = re.compile(r"[2-9][0-9]{0,2}(\.[0-9]{1,4}){1,2}((a|b|rc|\.dev|\.post)[0-9]{1,8})?(\+[a-z0-9.]{1,40})?")


def check_checkpoint(checkpoint: Any) -> None:
    """Check every part of a checkpoint, and make its settings plain in place.

    Parts may be missing: `test` accepts a checkpoint without a replay buffer.

    Raises:
        InvalidValueError: A part does not have the required form.
    """
    form.mapping(checkpoint, "the checkpoint")
    for key in SETTINGS:
        if key in checkpoint:
            form.mapping(checkpoint[key], key)
            checkpoint[key] = form.plain(dict(checkpoint[key]), key)
    for key, value in checkpoint.items():
        form.text(key, "a key of the checkpoint")
        form.check_nesting(value, key[:60])
    for key, value in checkpoint.items():
        if key in PARTS:
            PARTS[key](value, key)
        elif isinstance(value, dict) and "ranks" in value:  # a datamodule's state, under the name of its class
            DATA(value, key)
    parts, obs_dim = checkpoint.get("observation_parts"), checkpoint.get("hyper_parameters", {}).get("obs_dim")
    if parts is not None and not has_size(parts, obs_dim):
        raise InvalidValueError("observation_parts", f"a description of observations of {obs_dim} numbers", parts)


def require_parts(checkpoint: Mapping[str, Any], training: bool) -> None:
    """Raise `InvalidValueError` if a part that Lightning or this package requires is missing.

    Args:
        checkpoint: The checkpoint.
        training: Whether a run is resumed from it, which also requires the state of the training.
    """
    parts = ["state_dict", "hyper_parameters", "pytorch-lightning_version", "target_noise", "clocks"]
    if training:
        if checkpoint.keys().isdisjoint(RESUMED_PARTS):
            raise InvalidValueError("a checkpoint to resume from", "saved without save_weights_only", "weights only")
        parts += ["loops", *RESUMED_PARTS]
    missing = [part for part in parts if part not in checkpoint]
    missing += [f"clocks.{name}" for name in CLOCKS if name not in checkpoint.get("clocks", {})]
    if missing:
        raise InvalidValueError(missing[0], "in the checkpoint", None)


def clock_name(value: Any, name: str) -> None:
    """Check for the name of a clock, because an agent gets attributes of these names."""
    if value not in CLOCKS:
        raise InvalidValueError(name, f"one of {', '.join(CLOCKS)}", value)


def file_name(value: Any, name: str) -> None:
    """Check for the name of a file, without a folder."""
    form.text(value, name)
    if not value or "/" in value or "\\" in value or value in (".", ".."):
        raise InvalidValueError(name, "the name of a file without a folder", value)


def version(value: Any, name: str) -> None:
    """Check for a version of Lightning that this package supports."""
    if not isinstance(value, str) or not VERSION.fullmatch(value):
        raise InvalidValueError(name, "a version of Lightning from 2.0 on", value)


def averaging_state(value: Any, name: str) -> None:
    """Check for the state of torch's `AveragedModel` without its weights: the number of averaged models."""
    form.fields({"n_averaged": form.scalar})(value, name)
    if value.keys() != {"n_averaged"} or not isinstance(value["n_averaged"], Tensor) or value["n_averaged"].ndim:
        raise InvalidValueError(name, "a mapping with one tensor, n_averaged", value)


def algorithm(value: Any, name: str) -> None:
    """Check for the name of an agent of this package."""
    if value not in ALGORITHMS:
        raise InvalidValueError(name, f"one of {', '.join(ALGORITHMS)}", value)


def class_name(value: Any, name: str) -> None:
    """Check for the name of a class, which is only compared."""
    form.text(value, name)
    if not value.isidentifier() or len(value) > MAX_NAME:
        raise InvalidValueError(name, f"the name of a class, with at most {MAX_NAME} characters", value)


MAX_NAME = 200
COUNTS = form.by_name(form.count, clock_name)
TENSORS = form.by_name(form.check_tensor)
PARTS: dict[str, form.Check] = {
    "format": form.count,
    "algorithm": algorithm,
    "policy_class": class_name,
    "epoch": form.count,
    "global_step": form.count,
    "pytorch-lightning_version": version,
    "clocks": COUNTS,
    "callbacks": form.by_name(form.mapping),
    "loops": loop_states,
    "state_dict": TENSORS,
    "current_model_state": TENSORS,
    "averaging_state": TENSORS,
    "trained_policy": TENSORS,
    "optimizer_states": form.series(form.fields({"state": form.mapping, "param_groups": form.series(form.mapping)})),
    "lr_schedulers": form.series(form.mapping),
    "stopped_early": form.series(form.by_name(form.optional(form.plain))),
    **dict.fromkeys(("target_noise", "act_noise"), form.series(torch_generator)),
    "exploration_noise": form.optional(form.mapping),
    "counted_datasets": form.optional(form.series(form.count)),
}

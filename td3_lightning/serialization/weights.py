"""Checks of weights against the module that loads them."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from td3_lightning.serialization import values as form
from td3_lightning.serialization.values import InvalidValueError

MAX_UNCHECKED = 10_000  # a setting of an encoder up to this size is accepted with any number of weights
MAX_OBS_DIM = 30_000_000  # numbers in the frames of an encoder, which may have fewer weights


def check_sizes_of(settings: Mapping[str, Any], weights: Any, name: str) -> None:
    """Check that networks of these settings have no more weights than the checkpoint holds, before any is built.

    Args:
        settings: The model's settings, after their types are checked.
        weights: The checkpoint's `state_dict`.
        name: Name of the settings in errors.
    """
    most = sum(weight.numel() for weight in weights.values()) if isinstance(weights, dict) else 0
    critics = settings.get("num_critics", 1)
    if not isinstance(critics, int) or critics > most:
        raise InvalidValueError(f"{name}.num_critics", f"at most {most:,}, as the checkpoint's weights", critics)
    obs_dim, encoders = settings.get("obs_dim"), [settings.get(each) for each in ("encoder", "critic_encoder")]
    if isinstance(obs_dim, int) and obs_dim > (MAX_OBS_DIM if any(encoders) else most):
        raise InvalidValueError(f"{name}.obs_dim", f"at most {MAX_OBS_DIM if any(encoders) else most:,}", obs_dim)
    if settings.get("normalize_observations"):
        _check_layers([obs_dim], most, f"{name}.obs_dim")
    of_critics = "critic_hidden_dims" if settings.get("critic_hidden_dims") else "hidden_dims"
    for setting in ("hidden_dims", "critic_hidden_dims"):
        copies = critics if setting == of_critics else 1
        # Without an encoder, the observations are an input of the first layer.
        inputs = [] if any(encoders) else [obs_dim]
        _check_layers([*inputs, *(settings.get(setting) or [])], most // max(copies, 1), f"{name}.{setting}")
    for setting, encoder in zip(("encoder", "critic_encoder"), encoders, strict=True):
        _check_widths(encoder, most, f"{name}.{setting}")
        widths = encoder.get("init_args", {}).get("widths") if isinstance(encoder, dict) else None
        if isinstance(widths, list):  # of a Trunk, whose input is the observation
            _check_layers([obs_dim, *widths], most, f"{name}.{setting}")
    if isinstance(widths := settings.get("hidden_dims"), list) and isinstance(settings.get("zs_dim"), int):
        for width in widths:  # the embedding is an input or an output of layers of these widths
            _check_widths([width, settings["zs_dim"]], most, f"{name}.zs_dim")


def _check_layers(widths: list[Any], most: int, name: str) -> None:
    """Check the number of weights of linear layers between these widths, and that of their biases."""
    sizes = [size for size in widths if isinstance(size, int)]
    if max(sum(a * b for a, b in pairwise(sizes)), sum(sizes[1:]), *sizes, 0) > most:
        raise InvalidValueError(name, f"of at most {most:,} weights, as many as the checkpoint holds", widths)


def _check_widths(value: Any, most: int, name: str) -> None:
    """Check sizes in nested settings, and the products of sizes that follow each other in a list."""
    if isinstance(value, dict):
        for key, held in value.items():
            _check_widths(held, most, f"{name}.{key}")
    elif isinstance(value, list):
        sizes = [size for size in value if isinstance(size, int)]
        if len(value) > most or sum(a * b for a, b in pairwise(sizes)) > most:
            raise InvalidValueError(name, f"of at most {most:,} weights, as many as the checkpoint holds", value)
        for held in value:
            _check_widths(held, most, name)
    elif isinstance(value, int) and value > max(most, MAX_UNCHECKED):
        raise InvalidValueError(name, f"at most {most:,}, as many weights as the checkpoint holds", value)


def check_weights(checkpoint: Mapping[str, Any], module: torch.nn.Module, strict: bool = True) -> None:
    """Check that the weights have the names and the shapes of a module's.

    Raises:
        InvalidValueError: A weight is missing, unknown, or of another shape.
    """
    ours = module.state_dict()
    for part in ("state_dict", "current_model_state"):
        held = checkpoint.get(part, {} if part == "state_dict" else ours)
        names = [*(name for name in ours if name not in held), *(name for name in held if name not in ours)]
        if strict and names:
            raise InvalidValueError(f"{part}.{names[0][:60]}", "in the checkpoint and the model", held.get(names[0]))
        for name in filter(held.__contains__, ours):  # in order, so that the first layer is named
            check_shape(held[name], ours[name], f"{part}.{name}")
    _check_policy(checkpoint, getattr(module, "policy_state", dict)())


def _check_policy(checkpoint: Mapping[str, Any], ours: Mapping[str, Tensor]) -> None:
    """Check that the trained policy is complete, if a checkpoint holds one beside the deployed policy."""
    held = checkpoint.get("trained_policy", ours)
    for name in ours.keys() | held.keys():
        deployed = checkpoint.get("state_dict", {})
        if name not in held or name not in ours or (held is not ours and name not in deployed):
            raise InvalidValueError(f"trained_policy.{name[:60]}", "in the checkpoint and the model", held.get(name))
        check_shape(held[name], ours[name], f"trained_policy.{name}")


def check_shape(value: Any, like: Tensor, name: str) -> None:
    """Check for a real tensor with the shape of another one."""
    form.check_tensor(value, name)
    if value.shape != like.shape or value.is_complex():
        raise InvalidValueError(name, f"a tensor of shape {tuple(like.shape)}", value)

"""Checks of optimizer states against new optimizers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from td3_lightning.serialization import values as form
from td3_lightning.serialization.values import InvalidValueError
from td3_lightning.serialization.weights import check_shape

# Settings that decide which state exists.
SWITCHES = ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay")
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def check_optimizers(states: Any, optimizers: list[torch.optim.Optimizer]) -> None:
    """Check that the states of the optimizers match the weights that they update.

    There may be none at all, as in a published checkpoint: Lightning then keeps the new optimizers.
    """
    if len(states) not in (0, len(optimizers)):
        raise InvalidValueError("optimizer_states", f"a list of {len(optimizers)}", states)
    for index, (state, optimizer) in enumerate(zip(states, optimizers, strict=False)):
        name = f"optimizer_states.{index}"
        ours = optimizer.state_dict()["param_groups"]
        form.series(form.anything)(state["param_groups"], f"{name}.param_groups")
        if len(state["param_groups"]) != len(ours):
            raise InvalidValueError(f"{name}.param_groups", f"a list of {len(ours)}", state["param_groups"])
        for group, expected in zip(state["param_groups"], ours, strict=True):
            _check_group(group, expected, f"{name}.param_groups")
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        adam = MOMENTS if isinstance(optimizer, torch.optim.Adam) else ()
        _check_moments(state["state"], weights, adam, f"{name}.state")


def _check_group(group: Mapping[str, Any], ours: Mapping[str, Any], name: str) -> None:
    """Check an optimizer's settings against those of a new one."""
    form.series(form.count)(group.get("params"), f"{name}.params")
    if list(group["params"]) != ours["params"]:
        raise InvalidValueError(f"{name}.params", "the numbers of the weights", group.get("params"))
    for key, expected in ours.items():
        if key not in group and (expected is None or isinstance(expected, bool)):
            continue  # a switch that an older torch did not have
        if key not in group:
            raise InvalidValueError(name, f'a mapping with the key "{key}"', group)
        if key in SWITCHES and group[key] != expected:
            raise InvalidValueError(f"{name}.{key}", f"{expected}, as in the new optimizer", group[key])
        _check_like(group[key], expected, f"{name}.{key}")


def _check_like(held: Any, expected: Any, name: str) -> None:
    """Check that an optimizer's setting is of the same kind as another one."""
    if expected is None or isinstance(expected, bool):
        form.optional(form.flag)(held, name)
    elif isinstance(expected, int | float | Tensor):
        form.scalar(held, name)
    elif isinstance(expected, tuple | list):
        form.series(form.anything)(held, name)
        if len(held) != len(expected):
            raise InvalidValueError(name, f"{len(expected)} values", held)
        for one, other in zip(held, expected, strict=True):
            (form.number if isinstance(other, int | float) else form.scalar)(one, name)


def _check_moments(state: Mapping[Any, Any], weights: list[Tensor], required: Sequence[str], name: str) -> None:
    """Check that each tensor kept for a weight is a count of steps or has the weight's shape."""
    for key, entry in state.items():
        if not isinstance(key, int) or isinstance(key, bool) or not 0 <= key < len(weights):
            raise InvalidValueError(f"a key of {name}", f"an integer below {len(weights)}", key)
        form.fields(dict.fromkeys(required, form.anything))(entry, f"{name}.{key}")
        for what, value in entry.items():
            if what == "step":
                form.scalar(value, f"{name}.{key}.step")
            elif value is not None:
                check_shape(value, weights[key], f"{name}.{key}.{form.brief(what)}")

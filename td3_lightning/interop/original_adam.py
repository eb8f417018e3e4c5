"""Convert states of Adam between this package and the original TD3, and check those from files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from td3_lightning.errors import UsageError, shown

Tensors = Sequence[Tensor]  # weight, bias, weight, bias, ... of consecutive layers

Rearrange = Callable[[Tensors], list[Tensor]]

MOMENTS = ("exp_avg", "exp_avg_sq")
ADAM_SETTINGS = ("betas", "eps", "weight_decay", "amsgrad", "maximize")  # must match, because the state depends on them


def their_adam(state: Mapping[str, Any], rearrange: Rearrange, parameters: int) -> dict[str, Any]:
    """Convert a state of Adam to the state of torch's default Adam for a number of parameters."""
    (group,) = state["param_groups"]
    if state["state"].keys() not in (set(), set(group["params"])):
        raise UsageError(
            "export requires the state of Adam for all weights, or for none, got that of "
            f"{len(state['state'])} of {len(group['params'])}. Use another checkpoint."
        )
    plain = torch.optim.Adam([torch.zeros(1)], lr=group["lr"]).state_dict()["param_groups"][0]
    return {
        "state": _rearranged(state["state"], rearrange),
        "param_groups": [{**plain, "params": list(range(parameters))}],
    }


def our_adam(
    state: Mapping[Any, Any], file: Path, adam: torch.optim.Optimizer, expected: Tensors, rearrange: Rearrange
) -> dict[str, Any]:
    """Convert the state of Adam in a file to that of an optimizer of this package.

    Args:
        state: Content of the file.
        file: Its path, for the message.
        adam: The optimizer.
        expected: Tensors with the shapes of the parameters in the file.
        rearrange: Conversion of the parameters.

    Raises:
        UsageError: The content is not a state of Adam, or its settings or shapes are different.
    """
    ours = adam.state_dict()["param_groups"]
    if not _is_adams(state):
        raise UsageError(
            f"{file} must contain a state of Adam, got another object. Export it again, or remove both "
            "_optimizer files."
        )
    for name in ADAM_SETTINGS:
        got = [group.get(name, ours[0][name]) for group in state["param_groups"]]
        if got != [ours[0][name]]:
            raise UsageError(
                f"{name} in {file} must be {ours[0][name]}, got {shown(got)}. Remove both _optimizer files."
            )
    entries = state["state"]
    for moment in MOMENTS if entries else ():
        held = shapes([entries[at][moment] for at in sorted(entries)])
        if held != shapes(expected):
            raise UsageError(
                f"{file} must contain the Adam of these networks, got moments of the shapes {held}. Use the file that "
                "was saved with the networks."
            )
    return {"state": _rearranged(entries, rearrange), "param_groups": ours}


def shapes(tensors: Tensors) -> list[tuple[int, ...]]:
    """Return the shapes of tensors."""
    return [tuple(tensor.shape) for tensor in tensors]


def is_dense(value: Any) -> bool:
    """Return whether a value is an ordinary tensor of floats."""
    return isinstance(value, Tensor) and value.layout is torch.strided and value.is_floating_point()


def _is_adams(state: Mapping[Any, Any]) -> bool:
    """Return whether a mapping is a state of Adam, with the moments of all parameters or of none."""
    try:
        entries, groups = state["state"], state["param_groups"]
        moments = [entry[name] for entry in entries.values() for name in MOMENTS]
        steps = [float(entry["step"]) for entry in entries.values()]
        return (
            entries.keys() == set(range(len(entries)))
            and all(map(is_dense, moments))
            and all(step >= 0 for step in steps)
            and all(isinstance(group, dict) for group in groups)
        )
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        return False


def _rearranged(entries: Mapping[int, Mapping[str, Any]], rearrange: Rearrange) -> dict[int, dict[str, Any]]:
    """Convert the moments and steps of Adam in the same way as the parameters."""
    if not entries:  # before the first step
        return {}
    step = torch.as_tensor(entries[0]["step"], dtype=torch.float32)  # a plain number in old files
    moments = [rearrange([entries[at][name] for at in sorted(entries)]) for name in MOMENTS]
    return {
        at: {"step": step.clone(), **dict(zip(MOMENTS, pair, strict=True))}
        for at, pair in enumerate(zip(*moments, strict=True))
    }

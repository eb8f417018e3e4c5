"""The form of each part of a checkpoint."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from td3_lightning.serialization import values as form
from td3_lightning.serialization.primitives import as_arrays
from td3_lightning.serialization.segment_files import NAME
from td3_lightning.serialization.values import InvalidValueError

SETTINGS = ("config", "hyper_parameters")


VERSION = re.compile(r"[2-9][0-9]{0,2}(\.[0-9]{1,4}){1,2}((a|b|rc|\.dev|\.post)[0-9]{1,8})?(\+[a-z0-9.]{1,40})?")


BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


FEW = 10_000  # any setting may be as large


MOMENTS = ("step", "exp_avg", "exp_avg_sq")


BUFFERED = {"MT19937": ("pos", 624), "Philox": ("buffer_pos", 4)}  # positions that numpy does not check


def check_checkpoint(checkpoint: Any) -> None:
    """Check every part of a checkpoint, and make its settings plain in place.

    Parts may be missing: a checkpoint without a replay is a good one for `test`.

    Raises:
        InvalidValueError: A part does not have the required form.
    """
    form.mapping(checkpoint, "the checkpoint")
    for key, value in checkpoint.items():
        form.text(key, "a key of the checkpoint")
        form.check_nesting(value, key[:60])
    for key in SETTINGS:
        if key in checkpoint:
            form.mapping(checkpoint[key], key)
            checkpoint[key] = form.plain(dict(checkpoint[key]), key)
    for key, value in checkpoint.items():
        if key in PARTS:
            PARTS[key](value, key)
        elif isinstance(value, dict) and "ranks" in value:  # a datamodule's state, under the name of its class
            DATA(value, key)


def missing_part(checkpoint: Mapping[str, Any], training: bool) -> str | None:
    """Name a part that Lightning or this package requires and the checkpoint does not have; None if it has all."""
    parts = ["state_dict", "hyper_parameters", "pytorch-lightning_version", "target_noise", "clocks"]
    parts += ["loops", "callbacks", "optimizer_states", "lr_schedulers"] if training else []
    missing = [part for part in parts if part not in checkpoint]
    missing += [
        f"clocks.{name}" for name in ("env_steps", "updates", "episodes") if name not in checkpoint.get("clocks", {})
    ]
    return next(iter(missing), None)


# Parts of several kinds of state.


def torch_generator(value: Any, name: str) -> None:
    """Check for the state of a torch generator."""
    form.check_tensor(value, name)
    try:
        torch.Generator().set_state(value.contiguous())
    except (RuntimeError, TypeError) as error:
        raise InvalidValueError(name, "the state of a torch generator", value) from error


def numpy_generator(value: Any, name: str) -> None:
    """Check for the state of a numpy bit generator."""
    form.mapping(value, name)
    kind = value.get("bit_generator")
    if not isinstance(kind, str) or kind not in BIT_GENERATORS:
        raise InvalidValueError(f"{name}.bit_generator", f"one of {', '.join(BIT_GENERATORS)}", kind)
    generator = getattr(np.random, kind)()
    try:
        generator.state = as_arrays(copy.deepcopy(value))
    except (TypeError, ValueError, KeyError, OverflowError, IndexError) as error:
        raise InvalidValueError(name, f"the state of a {kind} generator", value) from error
    if kind in BUFFERED:
        place, most = BUFFERED[kind]
        position = value["state"][place] if kind == "MT19937" else value[place]
        if not isinstance(position, int) or not 0 <= position <= most:
            raise InvalidValueError(f"{name}.{place}", f"an integer from 0 to {most}", position)


def segment_name(value: Any, name: str) -> None:
    """Check for the name of a segment file, without a folder."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidValueError(name, "the name of a segment file", value)


def file_name(value: Any, name: str) -> None:
    """Check for the name of a file, without a folder."""
    form.text(value, name)
    if not value or "/" in value or "\\" in value or value in (".", ".."):
        raise InvalidValueError(name, "the name of a file without a folder", value)


def version(value: Any, name: str) -> None:
    """Check for the version of a Lightning that this package supports."""
    if not isinstance(value, str) or not VERSION.fullmatch(value):
        raise InvalidValueError(name, "a version of Lightning from 2.0 on", value)


def rows(value: Any, name: str) -> None:
    """Check for a pair of the first row's number and rows."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidValueError(name, "a pair of a number and rows", value)
    form.count(value[0], f"{name}.0")
    form.check_tensor(value[1], f"{name}.1")
    if value[1].ndim != 2 or value[1].dtype != torch.float32:
        raise InvalidValueError(f"{name}.1", "a float32 tensor with two axes", value[1])


def progress(value: Any, name: str) -> None:
    """Check for nested mappings of counts and flags, as Lightning's loops have them."""
    if isinstance(value, dict):
        form.by_name(progress)(value, name)
    elif isinstance(value, list | tuple):  # the loaders' states, which are empty
        form.series(form.fields({}))(value, name)
    elif not isinstance(value, bool):
        form.count(value, name)


def ring(value: Any, name: str) -> None:
    """Check for the state of a ring, whose counters must agree."""
    RING(value, name)
    held = value["written"] + value["running"]
    for counter, most in (("running", 1), ("pending", value["written"]), ("transitions", held)):
        if value[counter] > most:
            raise InvalidValueError(f"{name}.{counter}", f"at most {most}", value[counter])
    if value["pending"] and not value["running"]:
        raise InvalidValueError(f"{name}.pending", "0 if no episode is running", value["pending"])


def replay(value: Any, name: str) -> None:
    """Check for the state of a replay: its layout, and one ring for each environment."""
    REPLAY(value, name)
    layout, rings = value["layout"], value["rings"]
    if len(rings) != layout["num_envs"]:
        raise InvalidValueError(f"{name}.layout.num_envs", f"{len(rings)}, as there are rings", layout["num_envs"])
    width = layout["obs_dim"] + layout["action_dim"] + 2
    for index, saved in enumerate(rings):
        for _, part in saved["rows"]:
            if part.shape[1] != width:
                raise InvalidValueError(f"{name}.rings.{index}.rows", f"{width} numbers wide", part)


def episode(value: Any, name: str) -> None:
    """Check for a running episode."""
    EPISODE(value, name)
    if value["actions"].ndim < 1:
        raise InvalidValueError(f"{name}.actions", "a list of actions", value["actions"])


def rank(value: Any, name: str) -> None:
    """Check for the state of a process: as many episodes as the replay has rings, or none."""
    STATE(value, name)
    rings, episodes = value.get("replay", {}).get("rings"), value.get("envs", {}).get("episodes", [])
    if rings is not None and episodes and len(episodes) != len(rings):
        raise InvalidValueError(f"{name}.envs.episodes", f"a list of {len(rings)}, one for each ring", episodes)


def any_tensor(value: Any, name: str) -> None:
    """Check for a tensor."""
    form.check_tensor(value, name)


def loop_states(value: Any, name: str) -> None:
    """Check for the state of Lightning's loops, with the counters that this package reads."""
    LOOPS(value, name)
    form.by_name(progress)(value, name)


def loader_states(value: Any, name: str) -> None:
    """Check for the states of the loaders, of which a ReplayData has one."""
    form.series(form.mapping)(value, name)
    if len(value) > 1:
        raise InvalidValueError(name, "a list of at most one state", value)


def averaging_state(value: Any, name: str) -> None:
    """Check for what torch's `AveragedModel` has besides its weights: how many it has averaged."""
    form.fields({"n_averaged": form.scalar})(value, name)
    if value.keys() != {"n_averaged"} or not isinstance(value["n_averaged"], Tensor) or value["n_averaged"].ndim:
        raise InvalidValueError(name, "a mapping with one tensor, n_averaged", value)


def noise_states(value: Any, name: str) -> None:
    """Check for the generators of all ranks; old checkpoints have one alone."""
    form.series(torch_generator)(value if isinstance(value, list) else [value], name)


COUNTS = form.by_name(form.count)


SEED = form.fields({}, {"seed": form.optional(form.count), "generator": numpy_generator})


LAYOUT = dict.fromkeys(("obs_dim", "action_dim", "capacity", "num_envs", "n_step"), form.count)


SEGMENT = form.fields({"name": segment_name, "first": form.count, "rows": form.count, "crc": form.count})


RING = form.fields(
    {
        **dict.fromkeys(("written", "running", "pending", "transitions"), form.count),
        "rows": form.series(rows),
    },
    {"segments": form.series(SEGMENT)},
)


REPLAY = form.fields(
    {
        "layout": form.fields({**LAYOUT, "reward_scale": form.number}),
        "steps_stored": form.count,
        "generator": torch_generator,
        "rings": form.series(ring),
    },
    {"steps_before": form.count},
)


EPISODE = form.fields(
    {"actions": any_tensor, "obs": any_tensor},
    {
        "seed": form.optional(form.count),
        "generator": numpy_generator,
        "return": form.number,
        "first_seed": form.optional(form.count),
        "episodes": form.count,
    },
)


STATE = form.fields({}, {"replay": replay, "envs": form.fields({"episodes": form.series(episode)})})


DATA = form.fields({"ranks": form.series(rank)})


BATCHES = form.fields(
    {name: form.fields({"ready": form.count, "completed": form.count}) for name in ("current", "total")}
)


EPOCHS = form.fields({"current": form.fields({"processed": form.count})})


FIT_LOOP = {
    "epoch_progress": EPOCHS,
    "epoch_loop.batch_progress": BATCHES,
    "epoch_loop.val_loop.batch_progress": BATCHES,
}


LOOP_STATE = form.fields({}, {"combined_loader": loader_states, "_batches_that_stepped": form.count})


LOOPS = form.fields({"fit_loop": form.fields(FIT_LOOP)})


TENSORS = form.by_name(any_tensor)


PARTS: dict[str, form.Check] = {
    "format": form.count,
    "epoch": form.count,
    "global_step": form.count,
    "pytorch-lightning_version": version,
    "clocks": COUNTS,
    "callbacks": form.by_name(form.mapping),
    "loops": loop_states,
    "state_dict": TENSORS,
    "current_model_state": TENSORS,
    "averaging_state": TENSORS,
    "optimizer_states": form.series(form.fields({"state": form.mapping, "param_groups": form.series(form.mapping)})),
    "lr_schedulers": form.series(form.mapping),
    "stopped_early": form.series(form.by_name(form.optional(form.plain))),
    "target_noise": noise_states,
}


# Parts that depend on what they are loaded into.


def check_sizes_of(settings: Mapping[str, Any], weights: Any, name: str) -> None:
    """Check that networks of these settings have no more weights than the checkpoint holds, before any is built.

    Args:
        settings: The model's settings, after their types are checked.
        weights: The checkpoint's `state_dict`.
        name: What the settings are called.
    """
    most = sum(weight.numel() for weight in weights.values()) if isinstance(weights, dict) else 0
    critics = settings.get("num_critics", 1)
    if not isinstance(critics, int) or critics > most:
        raise InvalidValueError(f"{name}.num_critics", f"at most {most:,}, as the checkpoint's weights", critics)
    _check_widths(settings.get("hidden_dims", []), most // max(critics, 1), f"{name}.hidden_dims")
    _check_widths(settings.get("encoder"), most, f"{name}.encoder")


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
    elif isinstance(value, int) and value > max(most, FEW):
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
        for name in held.keys() & ours.keys():
            _check_shape(held[name], ours[name], f"{part}.{name}")


def check_optimizers(states: Any, optimizers: list[torch.optim.Optimizer]) -> None:
    """Check that Adam's states, or another optimizer's, fit the weights that they are for.

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
        for group, wanted in zip(state["param_groups"], ours, strict=True):
            _check_group(group, wanted, f"{name}.param_groups")
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        adam = MOMENTS if isinstance(optimizer, torch.optim.Adam) else ()
        _check_moments(state["state"], weights, adam, f"{name}.state")


def _check_group(group: Mapping[str, Any], ours: Mapping[str, Any], name: str) -> None:
    """Check an optimizer's settings against those of a new one."""
    form.series(form.count)(group.get("params"), f"{name}.params")
    if list(group["params"]) != ours["params"]:
        raise InvalidValueError(f"{name}.params", "the numbers of the weights", group.get("params"))
    for key, wanted in ours.items():
        if key not in group and (wanted is None or isinstance(wanted, bool)):
            continue  # a switch that an older torch did not have
        if key not in group:
            raise InvalidValueError(name, f'a mapping with the key "{key}"', group)
        _check_like(group[key], wanted, f"{name}.{key}")


def _check_like(held: Any, wanted: Any, name: str) -> None:
    """Check that an optimizer's setting is of the same kind as another one."""
    if wanted is None or isinstance(wanted, bool):
        form.optional(form.flag)(held, name)
    elif isinstance(wanted, int | float | Tensor):
        form.scalar(held, name)
    elif isinstance(wanted, tuple | list):
        form.series(form.anything)(held, name)
        if len(held) != len(wanted):
            raise InvalidValueError(name, f"{len(wanted)} values", held)
        for one, other in zip(held, wanted, strict=True):
            _check_like(one, other, name)


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
                _check_shape(value, weights[key], f"{name}.{key}.{form.brief(what)}")


def _check_shape(value: Any, like: Tensor, name: str) -> None:
    form.check_tensor(value, name)
    if value.shape != like.shape or value.is_complex():
        raise InvalidValueError(name, f"a tensor of shape {tuple(like.shape)}", value)


def check_loops(states: Any, loops: Iterator[tuple[str, Any]]) -> None:
    """Check Lightning's loops' states against the states of new loops.

    Args:
        states: The states in the checkpoint.
        loops: The name and the state of each new loop.
    """
    for loop, ours in loops:
        form.mapping(states.get(loop), f"loops.{loop}")
        for key, held in states[loop].items():
            if key.endswith("state_dict"):
                LOOP_STATE(held, f"loops.{loop}.{key}")
            else:
                form.alike(held, ours.get(key, held), f"loops.{loop}.{key}")

"""Checks of the states of the replay buffer and of running episodes."""

from typing import Any

import torch

from td3_lightning.serialization import values as form
from td3_lightning.serialization.generator_states import numpy_generator, torch_generator
from td3_lightning.serialization.segment_files import NAME
from td3_lightning.serialization.values import InvalidValueError


def segment_name(value: Any, name: str) -> None:
    """Check for the name of a segment file, without a folder."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidValueError(name, "the name of a segment file", value)


def matrix(value: Any, name: str) -> None:
    """Check for float32 numbers in two axes."""
    form.check_tensor(value, name)
    if value.ndim != 2 or value.dtype != torch.float32:
        raise InvalidValueError(name, "a float32 tensor with two axes", value)


def rows(value: Any, name: str) -> None:
    """Check for a pair of the first row's number and rows."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidValueError(name, "a pair of a number and rows", value)
    form.count(value[0], f"{name}.0")
    matrix(value[1], f"{name}.1")


def priorities(value: Any, name: str) -> None:
    """Check for the priorities of a ring's transitions, which are at least 1 and finite."""
    form.check_tensor(value, name)
    if value.ndim != 1 or value.dtype != torch.float32 or not ((value >= 1) & value.isfinite()).all():
        raise InvalidValueError(name, "a float32 tensor with one axis and finite numbers of at least 1", value)


def largest_priority(value: Any, name: str) -> None:
    """Check for a priority that a float32 number can represent."""
    form.number(value, name)
    if not 1 <= value <= torch.finfo(torch.float32).max:
        raise InvalidValueError(name, "a finite number of at least 1", value)


def exponent(value: Any, name: str) -> None:
    """Check for an exponent of priorities, in (0, 1]."""
    form.number(value, name)
    if not 0 < value <= 1:
        raise InvalidValueError(name, "a number above 0 and at most 1", value)


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
    if "priorities" in value:
        _check_priorities(value["priorities"]["rings"], rings, f"{name}.priorities.rings")


def _check_priorities(held: list[Any], rings: list[Any], name: str) -> None:
    """Check for one priority of each transition."""
    expected = [saved["transitions"] for saved in rings]
    if [len(each) for each in held] != expected:
        raise InvalidValueError(name, f"a list of {len(rings)} tensors of the sizes {expected}"[:200], held)


def episode(value: Any, name: str) -> None:
    """Check for a running episode."""
    EPISODE(value, name)
    if value["actions"].ndim < 1:
        raise InvalidValueError(f"{name}.actions", "a list of actions", value["actions"])


def envs(value: Any, name: str) -> None:
    """Check for the running episodes, and the step that had begun."""
    ENVS(value, name)
    if "step" in value:
        _check_step(value["step"], value["episodes"], f"{name}.step")


def _check_step(step: dict[str, Any], episodes: list[Any], name: str) -> None:
    """Check that a step has the sizes of the running episodes, and a report for each end."""
    for key in STEP_FIELDS:
        if len(step[key]) != len(episodes):
            raise InvalidValueError(f"{name}.{key}", f"{len(episodes)} long, one for each episode", step[key])
    for key in ("obs", "last_obs"):
        for running in episodes:
            if step[key].shape[1] != running["obs"].numel():
                raise InvalidValueError(f"{name}.{key}", f"{running['obs'].numel()} numbers wide", step[key])
    ends = sum(map(max, zip(step["terminated"], step["truncated"], strict=True)))
    if len(step["reports"]) != ends:
        raise InvalidValueError(f"{name}.reports", f"a list of {ends}, one for each end", step["reports"])


def report(value: Any, name: str) -> None:
    """Check for the numbers of an episode that ended."""
    form.by_name(form.number)(value, name)
    form.fields({"return": form.number})(value, name)


def rank(value: Any, name: str) -> None:
    """Check for the state of one rank: no episodes, or one for each ring of the replay."""
    STATE(value, name)
    saved, running = value.get("replay"), value.get("envs", {})
    if saved is None:
        return
    rings, episodes, step = saved["rings"], running.get("episodes", []), running.get("step")
    if episodes and len(episodes) != len(rings):
        raise InvalidValueError(f"{name}.envs.episodes", f"a list of {len(rings)}, one for each ring", episodes)
    width = saved["layout"]["action_dim"]
    if step is not None and step["action"].shape[1] != width:
        raise InvalidValueError(f"{name}.envs.step.action", f"{width} numbers wide", step["action"])


LAYOUT = dict.fromkeys(("obs_dim", "action_dim", "capacity", "num_envs", "n_step"), form.count)
SEGMENT = form.fields({"name": segment_name, "first": form.count, "rows": form.count, "crc": form.count})
RING = form.fields(
    {**dict.fromkeys(("written", "running", "pending", "transitions"), form.count), "rows": form.series(rows)},
    {"segments": form.series(SEGMENT)},
)
REPLAY = form.fields(
    {
        "layout": form.fields({**LAYOUT, "reward_scale": form.number}),
        "steps_stored": form.count,
        "generator": torch_generator,
        "rings": form.series(ring),
    },
    {
        "steps_before": form.integer,
        "priorities": form.fields({"largest": largest_priority, "rings": form.series(priorities)}, {"alpha": exponent}),
    },
)
EPISODE = form.fields(
    {"actions": form.array, "obs": form.array},
    {
        "seed": form.optional(form.count),
        "generator": numpy_generator,
        "return": form.number,
        "first_seed": form.optional(form.count),
        "episodes": form.count,
    },
)
STEP_FIELDS: dict[str, form.Check] = {
    **dict.fromkeys(("obs", "action", "last_obs"), matrix),
    "reward": form.series(form.number),
    **dict.fromkeys(("terminated", "truncated"), form.series(form.flag)),
}
STEP = form.fields({**STEP_FIELDS, "reports": form.series(report)})
ENVS = form.fields({"episodes": form.series(episode)}, {"step": STEP})
DATASET = form.fields({"checksum": form.count}, {"generator": torch_generator})
STATE = form.fields({}, {"replay": replay, "dataset": DATASET, "envs": envs})
DATA = form.fields({"ranks": form.series(rank)})

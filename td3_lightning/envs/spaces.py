"""Checks of the spaces of an environment."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from td3_lightning.errors import UsageError, shown

EXPECTED = {  # the fix for another space, and the wrapper for a Box with another number of axes
    "observations": (
        "a Box, a discrete space, or a Dict or Tuple of them without frames",
        "Add a wrapper to data.wrappers, such as gymnasium.wrappers.FilterObservation, which keeps parts of a Dict.",
        "gymnasium.wrappers.FlattenObservation",
    ),
    "actions": ("a Box", "Use an environment with continuous actions.", "td3_lightning.FlattenAction"),
}


def check_box(env: gym.Env, what: str, env_id: str) -> Box:
    """Return the observation or action space, which must be a one-dimensional `Box`.

    Args:
        env: The environment.
        what: "observations" or "actions".
        env_id: Name of the environment in the message.

    Raises:
        UsageError: The space is not supported. The message names a wrapper that helps, if there is one.
    """
    space = getattr(env, "observation_space" if what == "observations" else "action_space", None)
    allowed, fix, flatten = EXPECTED[what]
    if not isinstance(space, Box):
        raise UsageError(f"{what} of {env_id} must be {allowed}, got {shown(space)}. {fix}")
    if what == "observations" and len(space.shape) == 3 and space.dtype == np.uint8:
        raise UsageError(
            f"observations of {env_id} must have one axis, got frames of shape {space.shape}. Use data.pixels and "
            "model.encoder, as car_pixels.yaml does."
        )
    if len(space.shape) != 1 or not space.shape[0]:
        raise UsageError(
            f"{what} of {env_id} must have one axis and at least one number, got shape {space.shape}. Add {flatten} to "
            "data.wrappers."
        )
    if what == "actions":
        _check_action_box(space, env_id)
    return space


def _check_action_box(space: Box, env_id: str) -> None:
    if not np.issubdtype(space.dtype, np.floating):
        raise UsageError(
            f"actions of {env_id} must be floats, got {shown(space)} of {space.dtype}. Use an environment with "
            "continuous actions, or add a wrapper that rounds them to data.wrappers."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        width = space.high.astype(np.float32) - space.low.astype(np.float32)
    if not np.isfinite(width).all():  # also for bounds of +-float32 max
        raise UsageError(
            f"actions of {env_id} must have finite bounds whose difference is a float32, got "
            f"{shown(space)}. Add td3_lightning.SymmetricActionBounds to data.wrappers, with a practical bound."
        )
    if not (space.low < space.high).all():
        raise UsageError(
            f"actions of {env_id} must have low < high, got {shown(space)}. Add a wrapper that removes the constant "
            "actions to data.wrappers."
        )


def check_are_new(envs: Sequence[gym.Env], env_id: str) -> None:
    """Raise `UsageError` if two environments, of the training or the evaluation, are the same object."""
    if len({id(env.unwrapped) for env in envs}) < len(envs):
        raise UsageError(
            f"env_id must return a new environment at each call, got the same {env_id} twice. Create it "
            "inside the function, for example `lambda: MyEnv()`."
        )


def check_same_spaces(obs_space: gym.Space[Any], action_space: gym.Space[Any], eval_env: gym.Env, env_id: str) -> None:
    """Raise `UsageError` if the training environments have other spaces than the evaluation environment."""
    shape, expected_shape, expected = obs_space.shape, eval_env.observation_space.shape, eval_env.action_space
    for what, got, needed, is_same in (
        ("observations", shape, expected_shape, shape == expected_shape),
        ("actions", action_space, expected, _has_same_bounds(action_space, expected)),
    ):
        if not is_same:
            raise UsageError(
                f"{env_id} must have the same {what} in training and evaluation, got {got} in training and {needed} in "
                "evaluation. Use data.env_kwargs, not data.train_kwargs, for what changes both."
            )


def _has_same_bounds(space: gym.Space[Any], expected: gym.Space[Any]) -> bool:
    """Return whether two boxes are equal up to their types. EnvPool's actions are float64."""
    if not isinstance(space, Box) or not isinstance(expected, Box) or space.shape != expected.shape:
        return False
    return np.allclose(space.low, expected.low) and np.allclose(space.high, expected.high)

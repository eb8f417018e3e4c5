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
    with np.errstate(over="ignore", invalid="ignore"):
        width = space.high.astype(np.float32) - space.low.astype(np.float32)
    for is_right, expected, fix in (
        (np.issubdtype(space.dtype, np.floating), "be floats", "Use an environment with continuous actions"),
        # Also for bounds of +-float32 max.
        (
            np.isfinite(width).all(),
            "have finite bounds with a finite difference",
            "Add td3_lightning.SymmetricActionBounds to data.wrappers",
        ),
        ((width > 0).all(), "have low < high", "Add a wrapper that removes the constant actions to data.wrappers"),
    ):
        if not is_right:
            raise UsageError(f"actions of {env_id} must {expected}, got {shown(space)}. {fix}.")


def check_are_new(envs: Sequence[gym.Env], env_id: str) -> None:
    """Raise `UsageError` if two environments, of the training or the evaluation, are the same object."""
    if len({id(env.unwrapped) for env in envs}) < len(envs):
        raise UsageError(
            f"env_id must return a new environment at each call, got the same {env_id} twice. Create it "
            "inside the function, for example `lambda: MyEnv()`."
        )


def check_same_spaces(obs_space: gym.Space[Any], action_space: gym.Space[Any], eval_env: gym.Env, env_id: str) -> None:
    """Raise `UsageError` if the training environments have other spaces than the evaluation environment."""
    own: Any = eval_env.action_space  # a Box; EnvPool's actions are float64
    is_same = isinstance(action_space, Box) and action_space.shape == own.shape
    is_same = is_same and np.allclose([action_space.low, action_space.high], [own.low, own.high])  # type: ignore[attr-defined]
    if obs_space.shape == eval_env.observation_space.shape and is_same:
        return
    got, needed = (obs_space, action_space), (eval_env.observation_space, own)
    what, (first, second) = ("actions", (got[1], needed[1])) if not is_same else ("observations", (got[0], needed[0]))
    raise UsageError(
        f"{env_id} must have the same {what} in training and evaluation, got {first} in training and {second} in "
        "evaluation. Use data.env_kwargs, not data.train_kwargs, for what changes both."
    )

"""Checks that an agent can be trained with a data module."""

from typing import Any

import numpy as np

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.errors import UsageError
from td3_lightning.training.data_module import ReplayData


def check_trainable(module: TD3) -> None:
    """Raise `UsageError` if the actor or the critics have no trainable weight."""
    for name, network in (("actor", module.actor), ("critics", module.critics)):
        if not any(weight.requires_grad for weight in network.parameters()):
            raise UsageError(
                f"The {name} must have a trainable weight, got only weights with requires_grad=False. Use "
                "agent.unfreeze() before fit."
            )


def check_dimensions(module: TD3, data: ReplayData) -> None:
    """Raise `UsageError` if the agent was built for other observations or actions."""
    got: list[Any] = [module.hparams[name] for name in ("obs_dim", "action_low", "action_high")]
    expected: list[Any] = [data.obs_dim, data.action_low, data.action_high]
    if not all(np.array_equal(np.float32(one), np.float32(other)) for one, other in zip(got, expected, strict=True)):
        raise UsageError(
            f"obs_dim, action_low and action_high of the agent must be those of {data.env_id}, {expected}, got {got}. "
            "Use TD3(data.obs_dim, data.action_low, data.action_high)."
        )

"""What a learner that has diverged must not do: act, be judged, or be saved in place of one that has not."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from td3_lightning.errors import LearnerError

ADVICE = (
    "the learner has diverged, and the checkpoints saved before are untouched; smaller learning rates, "
    "model.max_grad_norm or data.reward_scale may help"
)


def check_losses(losses: Mapping[str, Tensor], updates: int) -> None:
    """Raises `LearnerError` if what an update returned, losses and mean Q, is not finite.

    Args:
        losses: Single numbers by name.
        updates: Which update they are of.
    """
    for name, loss in losses.items():
        value = float(loss)
        if not math.isfinite(value):
            raise LearnerError(f"{name} is {value} at update {updates:,}: {ADVICE}.")


def check_action(action: NDArray[np.float32], updates: int) -> None:
    """Raises `LearnerError` if the actor's actions (num_envs, action_dim) are not finite, before one is taken."""
    if not all(map(math.isfinite, action.ravel().tolist())):  # of a few numbers faster than numpy
        raise LearnerError(f"The actor's action is {action.tolist()} after update {updates:,}: {ADVICE}.")


def check_weights(module: nn.Module, updates: int, *optimizers: Optimizer) -> None:
    """Raises `LearnerError` if a weight is not finite, or an optimizer's state for it.

    Args:
        module: Whose weights they are, those of the targets too.
        updates: After which update.
        *optimizers: Its optimizers.
    """
    names: dict[Tensor, str] = {weight: name for name, weight in module.named_parameters()}
    for weight, name in names.items():
        if not weight.isfinite().all():
            raise LearnerError(f"A weight in {name} is not finite after update {updates:,}: {ADVICE}.")
    for optimizer in optimizers:
        for weight, state in optimizer.state.items():
            for kind, value in state.items():
                if isinstance(value, Tensor) and not value.isfinite().all():
                    said = f"{kind} of {names.get(weight, 'a weight')}"
                    raise LearnerError(f"The optimizer's {said} is not finite after update {updates:,}: {ADVICE}.")

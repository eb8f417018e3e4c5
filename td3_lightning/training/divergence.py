"""Stop a diverged run before it acts, is evaluated, or overwrites a good checkpoint."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from td3_lightning.errors import LearnerError

ADVICE = (
    "The learner has diverged; earlier checkpoints are unchanged. Reduce the learning rates or data.reward_scale, or "
    "set model.max_grad_norm."
)


def check_losses(losses: Mapping[str, Tensor], updates: int) -> None:
    """Raise `LearnerError` if a loss or the mean Q-value of an update, a scalar, is not finite."""
    for name, loss in losses.items():
        if not math.isfinite(value := float(loss)):
            raise LearnerError(f"{name} is {value} at update {updates:,}. {ADVICE}")


def check_action(action: NDArray[np.float32], updates: int) -> None:
    """Raise `LearnerError` if an action of the actor, (num_envs, action_dim), is not finite."""
    if not all(map(math.isfinite, action.ravel().tolist())):  # faster than NumPy for a few numbers
        raise LearnerError(f"The actor's action is {action.tolist()} after update {updates:,}. {ADVICE}")


def check_weights(module: nn.Module, updates: int, *optimizers: Optimizer) -> None:
    """Raise `LearnerError` if a weight, also of a target network, or an optimizer state is not finite."""
    names: dict[Tensor, str] = {weight: name for name, weight in module.named_parameters()}
    for weight, name in names.items():
        if not weight.isfinite().all():
            raise LearnerError(f"A weight in {name} is not finite after update {updates:,}. {ADVICE}")
    for optimizer in optimizers:
        for weight, state in optimizer.state.items():
            for kind, value in state.items():
                if isinstance(value, Tensor) and not value.isfinite().all():
                    state_name = f"{kind} of {names.get(weight, 'a weight')}"
                    raise LearnerError(f"The optimizer's {state_name} is not finite after update {updates:,}. {ADVICE}")

"""Numbers below 1e-38, with which a CPU adds and multiplies up to a hundred times more slowly.

The gradient of a weight whose unit is silent is 0, and Adam's running mean of it fades: into such numbers after some
800 updates, and there it stays. A network has many silent units, and Adam may take six times as long for them.
"""

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch.optim import Adam, Optimizer

EVERY = 50  # updates, in which few means fade so far
TINY = torch.finfo(torch.float32).tiny  # float32 has full precision from here on


@torch.no_grad()
def clear_subnormals(optimizer: Optimizer | LightningOptimizer) -> None:
    """Sets what Adam remembers of a weight to 0 where it is too small to move it.

    No weight above 1e-22 changes by it: Adam divides by no less than its `eps`, 1e-8, so that the step is below 1e-29.
    Other optimizers are left alone; one that steps by a mean's sign goes as far for the smallest.
    """
    adam = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
    if not isinstance(adam, Adam):
        return
    for state in adam.state.values():
        for memory in state.values():
            if isinstance(memory, torch.Tensor) and memory.is_floating_point() and memory.ndim:
                torch.hardshrink(memory, TINY, out=memory)

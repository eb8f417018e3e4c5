"""Flushing of denormal numbers in Adam's state to zero.

The gradient of a weight of a dormant unit is 0, and Adam's moving averages of it decay into denormal numbers (below
1e-38) after about 800 updates. CPUs handle denormals much more slowly than other numbers.
`torch.set_flush_denormal` reaches the calling thread only (torch 2.13), not the threads that run Adam.
"""

import torch
from torch.optim import Adam, Optimizer

FLUSH_INTERVAL = 50  # updates
TINY = torch.finfo(torch.float32).tiny  # smallest normal float32


@torch.no_grad()
def flush_denormals(optimizer: Optimizer) -> None:
    """Set denormal numbers in Adam's state to zero.

    No weight above 1e-22 changes: Adam divides by at least its eps of 1e-8, so the step is below 1e-29. Other
    optimizers are not changed: the step of one that uses the sign of a mean does not depend on its size.
    """
    if not isinstance(optimizer, Adam):
        return
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim:
                torch.hardshrink(value, TINY, out=value)

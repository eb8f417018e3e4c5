"""Several processes that train together: each collects for itself, and all take the mean of their gradients."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from td3_lightning.errors import RunError, one_line
from td3_lightning.lost_peers import is_lost_peer
from td3_lightning.ranks import ranks


def average_gradients(weights: Iterable[Tensor]) -> None:
    """Replaces the gradients of some weights by their mean over all processes; of one process they are it already.

    Raises:
        RunError: Another process has ended.
    """
    if ranks() == 1:
        return
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    together = torch.cat([gradient.reshape(-1) for gradient in gradients])
    with _all_there("The gradients of the processes could not be averaged"):
        distributed.all_reduce(together)
    together /= ranks()
    means = torch.split(together, [gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [mean.view_as(each) for mean, each in zip(means, gradients, strict=True)])


def of_the_first(value: float, device: torch.device) -> float:
    """The first process's value, for all of them; their clocks may differ where episodes are collected whole.

    Raises:
        RunError: Another process has ended.
    """
    if ranks() == 1:
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=device)
    with _all_there("The learning rate of rank 0 could not be received"):
        distributed.broadcast(shared, 0)
    return float(shared)


@contextmanager
def _all_there(failure: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        raise RunError(
            f"{failure}, because another process has ended ({one_line(error)}). Read its output, then resume the run."
        ) from error


def leave_gradients_alone(model: nn.Module | None) -> None:
    """Keeps `DistributedDataParallel` from averaging in the next step: it wants every parameter in every loss."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = False

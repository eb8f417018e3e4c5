"""Several processes that train together: gather state from all ranks, average gradients, share a value.

Each process has its own environments and replay buffer; all apply the mean of their gradients.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor, distributed

State = TypeVar("State")


def world_size() -> int:
    """Return the number of processes that train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def gather_from_ranks(make: Callable[[], State]) -> list[State]:
    """Return the results of `make` on all ranks, in the ranks' order. Every rank must call this function.

    Raises:
        OSError: A rank raised it; all ranks raise it, so that none waits for another.
    """
    own: State | OSError
    try:
        own = make()
    except OSError as error:
        own = error
    states: list[State | OSError] = [own]
    if distributed.is_initialized():
        states = states * world_size()
        distributed.all_gather_object(states, own)
    for state in states:
        if isinstance(state, OSError):
            raise state
    return cast(list[State], states)


def select_rank(states: Sequence[State]) -> State | None:
    """Return this rank's element of `gather_from_ranks`; None if they were saved by another number of processes."""
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    return states[rank] if len(states) == world_size() else None


def average_gradients(parameters: Sequence[Tensor]) -> None:
    """Replace the gradients of parameters by their mean over all processes."""
    if world_size() == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= world_size()
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [part.view_as(each) for part, each in zip(parts, gradients, strict=True)])


def stack_over_ranks(value: Tensor) -> Tensor:
    """Return the tensors of all processes, (world_size, ...), in the order of the ranks. Every rank must call this."""
    if world_size() == 1:
        return value.unsqueeze(0)
    values = [torch.empty_like(value) for _ in range(world_size())]
    distributed.all_gather(values, value)
    return torch.stack(values)

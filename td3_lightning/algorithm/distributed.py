"""Several processes that train together: gather state from all ranks, average gradients, share a value.

Each process has its own environments and replay buffer; all apply the mean of their gradients.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from torch import Tensor, distributed

from td3_lightning.errors import RunError, one_line

# Texts of gloo, NCCL and TCPStore in torch 2.10 to 2.13.
_LOST = re.compile(
    r"clos(ed|ure)|reset by peer|refused|timed out|timeout|aborted|broken pipe|not connected|unreachable|host is down|"
    r"no route to host|(read|write) error|connectFullMesh failed|transport/.*writev|waitForInput: socket|"
    r"ncclRemoteError|remote process|remote peer|NET ?[:/].*(fail|peer|completed with error)",
    re.IGNORECASE,
)


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error of torch.distributed reports that another process of this run has ended."""
    if isinstance(error, distributed.DistNetworkError | distributed.DistStoreError):
        return True
    # An OSError with the same text may come from a user's own connection.
    return isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None


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
    """Replace the gradients of parameters by their mean over all processes.

    Raises:
        RunError: Another process has ended.
    """
    if world_size() == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    with _explain_lost_peer():
        distributed.all_reduce(flat)
    flat /= world_size()
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [part.view_as(each) for part, each in zip(parts, gradients, strict=True)])


def stack_over_ranks(value: Tensor) -> Tensor:
    """Return the tensors of all processes, (world_size, ...), in the ranks' order. Every rank must call this function.

    Raises:
        RunError: Another process has ended.
    """
    if world_size() == 1:
        return value.unsqueeze(0)
    values = [torch.empty_like(value) for _ in range(world_size())]
    with _explain_lost_peer():
        distributed.all_gather(values, value)
    return torch.stack(values)


@contextmanager
def _explain_lost_peer() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        message = f"Another process has ended ({one_line(error)}). Read its output, then resume the run."
        raise RunError(message) from error

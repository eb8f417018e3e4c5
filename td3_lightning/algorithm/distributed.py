"""Several processes: gather state from all ranks, average gradients, recognize a lost peer."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

import lightning as L
import torch
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from td3_lightning.errors import RunError, UsageError, one_line

# Texts of torch 2.10 to 2.13. gloo reports the system's errno in its own words or in the C library's.
GLOO = (
    *("Connection closed by peer", "Socket closed", "Socket unexpectedly closed", "Pair is not connected"),
    *("Read error", "Read timeout", "Write error", "Write timeout", "Connect timeout"),
    *("Application timeout caused pair closure", "Gloo connectFullMesh failed", r"transport/.*writev \["),
    "Timed out waiting .* for (?:recv|send|.*operation)",
)


SYSTEM = (
    *("Connection reset by peer", "Connection refused", "Connection timed out", "Connection aborted", "Broken pipe"),
    *("No route to host", "Host is down", "Network is unreachable", "Software caused connection abort"),
    "Transport endpoint is not connected",
)


STORE = (
    *("Connection was likely closed", "client socket has timed out", "Socket Timeout", "waitForInput: socket"),
    *("Timed out after .* waiting for clients", "wait timeout after"),
)


NCCL = (
    *("ncclRemoteError", "remote process exited", "unexpected exit of a remote peer", "communicator was aborted"),
    *("Connection closed by remote peer", "Watchdog caught collective operation timeout", "NCCL timeout"),
    *("Some NCCL operations have failed or timed out", "Net ?: .*(?:failed|closed)"),
    "NET/.*(?:peer|completed with error)",
)


_LOST = re.compile("|".join((*GLOO, *SYSTEM, *STORE, *NCCL)), re.IGNORECASE)


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error of torch.distributed says that another process of this run has ended."""
    if type(error).__name__ in ("DistNetworkError", "DistStoreError"):  # torch may be built without them
        return True
    # OSError has the same words for a user's own connections.
    return isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None


State = TypeVar("State")


def gather_from_ranks(make: Callable[[], State]) -> list[State]:
    """What `make` gives on each rank, in the ranks' order; every rank has to call this.

    Raises:
        OSError: A rank met it; all of them raise it, so that none waits for another.
    """
    own: State | OSError
    try:
        own = make()
    except OSError as error:
        own = error
    states: list[State | OSError] = [own]
    if _together():
        states = states * ranks()
        distributed.all_gather_object(states, own)
    for state in states:
        if isinstance(state, OSError):
            raise state
    return cast(list[State], states)


def select_rank(states: Sequence[State]) -> State | None:
    """This rank's part of what `gather_from_ranks` gave; None if the ranks were more or fewer, and none is its own."""
    return states[_rank()] if len(states) == ranks() else None


def ranks() -> int:
    """Processes that train together."""
    return distributed.get_world_size() if _together() else 1


def check_launcher(trainer: L.Trainer) -> None:
    """Raises `UsageError` where processes come from this one, which has made its generators: all would draw alike."""
    if isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
        raise UsageError(
            "Processes that train together draw random numbers of their own, for which each has to begin by itself, "
            "but a strategy that forks or spawns them came; take ddp, in a script or on the command line."
        )


def _rank() -> int:
    return distributed.get_rank() if _together() else 0


def _together() -> bool:
    return distributed.is_available() and distributed.is_initialized()


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


def broadcast_from_rank_zero(value: float, device: torch.device) -> float:
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


def disable_ddp_grad_sync(model: nn.Module | None) -> None:
    """Keeps `DistributedDataParallel` from averaging in the next step: it wants every parameter in every loss."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = False

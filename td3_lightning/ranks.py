"""State of several processes in one checkpoint: gathered when it is saved, each its own when it is loaded."""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import lightning as L
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from torch import distributed

from td3_lightning.errors import UsageError

State = TypeVar("State")


def of_every_rank(make: Callable[[], State]) -> list[State]:
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


def of_this_rank(states: Sequence[State]) -> State | None:
    """This rank's part of what `of_every_rank` gave; None if the ranks were more or fewer, and none is its own."""
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

"""Check of how the processes of a distributed run are started."""

import lightning as L

from td3_lightning.errors import UsageError

_MULTIPROCESSING = "lightning.pytorch.strategies.launchers.multiprocessing"


def check_launcher(trainer: L.Trainer) -> None:
    """Refuse a strategy that forks or spawns processes.

    The random generators of this process already exist, so every copy of it would draw the same numbers.

    Raises:
        UsageError: The strategy starts its processes from this one.
    """
    kinds = type(trainer.strategy.launcher).__mro__
    if any(kind.__module__ == _MULTIPROCESSING for kind in kinds):
        raise UsageError(
            "trainer.strategy must start each process independently, got a strategy that forks or spawns them. Use "
            "ddp, in a script or on the command line."
        )

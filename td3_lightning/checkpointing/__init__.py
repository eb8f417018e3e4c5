"""Optional fault tolerance: crash-safe checkpoints, their rotation, signals and exact resume.

The objects that own a state decide what of it is saved, in their `state_dict`. Nothing here changes what a run
computes.
"""

from collections.abc import Sequence

from lightning.pytorch.callbacks import Callback, ModelCheckpoint, ProgressBar, WeightAveraging

from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.interruption import SaveOnFailure, StopOnSignal
from td3_lightning.checkpointing.last import LastCheckpoint
from td3_lightning.checkpointing.log_rollback import LogRollback
from td3_lightning.training.collector import Collector


def callbacks(
    collector: Collector,
    best: BestCheckpoint | None,
    others: Sequence[Callback] = (),
    records: Sequence[Callback] = (),
) -> list[Callback]:
    """Return the callbacks of a fault-tolerant training run in the order that they require.

    A run with these callbacks finishes its update on a signal, saves `last.ckpt` and exits. It also saves when an
    environment fails. Resumed from `last.ckpt`, it continues bit-exactly.

    Args:
        collector: The Collector.
        best: Callback that keeps the best checkpoint. `last.ckpt` is saved in its folder. None saves no checkpoints.
        others: Your callbacks, for example an EarlyStopping or AveragedWeights.
        records: Callbacks that must also run when a signal arrives during the warm-up, for example one that writes
            the configuration to the run's folder.

    Returns:
        A new list for the Trainer's `callbacks`.
    """
    bars = [each for each in others if isinstance(each, ProgressBar)]
    averages = [each for each in others if isinstance(each, WeightAveraging)]
    keepers = [each for each in others if isinstance(each, ModelCheckpoint)]
    placed = [*bars, *averages, *keepers]
    return [
        *bars,  # visible during the warm-up, which the Collector runs
        SaveOnFailure(),  # before the Collector discards the failed episodes
        *averages,  # before the Collector, whose step may stop the run after an update that the average must include
        collector,
        *records,  # a run stopped in its warm-up has them too
        StopOnSignal(),  # after the Collector, so that its step is part of what is saved
        LogRollback(),
        *(each for each in others if each not in placed),
        # The Trainer also moves the ModelCheckpoints to the end. Your files and last.ckpt hold the state of `best`.
        *([] if best is None else [best]),
        *keepers,
        *([] if best is None else [LastCheckpoint(best.dirpath)]),  # last.ckpt holds the state of all others
    ]

"""Lightning's loop counters that decide whether an evaluation is due."""

import math
from typing import Any

import lightning as L


def evaluation_is_due(trainer: L.Trainer) -> bool:
    """Whether Lightning evaluates after this update, by the count of the epoch's or, without epochs, of all of them.

    A run that ends early, such as a solved one, is evaluated once more.
    """
    loop = trainer.fit_loop.epoch_loop
    count = loop.total_batch_idx if trainer.check_val_every_n_epoch is None else loop.batch_idx
    in_this_epoch = (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1) == 0
    ends_early = trainer.should_stop and trainer.fit_loop._can_stop_early
    return in_this_epoch and (ends_early or (count + 1) % (trainer.val_check_batch or math.inf) == 0)


def force_evaluation_on_resume(progress: dict[str, Any], before: int) -> None:
    """Has a resumed run begin with an evaluation, by what a checkpoint says of its progress.

    To Lightning it is an evaluation that was stopped in its first episode, after so many episodes of others.
    """
    for counts, done in ((progress["current"], 0), (progress["total"], before)):
        counts.update(ready=done + 1, started=done + 1, processed=done, completed=done)
    progress["is_last_batch"] = False

"""Lightning's loop counters that fault tolerance reads and writes.

Written for Lightning 2.6. `tests/checkpointing/test_callback_order.py` fails if a counter is renamed.
"""

import math
from typing import Any

import lightning as L

from td3_lightning.errors import UsageError

VALIDATION_PROGRESS = "epoch_loop.val_loop.batch_progress"  # counts evaluation episodes
TRAINING_PROGRESS = "epoch_loop.batch_progress"  # counts updates
EPOCH_PROGRESS = "epoch_progress"


def evaluation_is_due(trainer: L.Trainer) -> bool:
    """Return whether Lightning evaluates after the current update.

    Lightning counts the updates of the epoch, or all updates if `check_val_every_n_epoch` is None. It also evaluates
    after the last update of a run that stops early.
    """
    if not trainer.enable_validation:
        return False
    loop = trainer.fit_loop.epoch_loop
    count = loop.total_batch_idx if trainer.check_val_every_n_epoch is None else loop.batch_idx
    in_this_epoch = (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1) == 0
    ends_early = trainer.should_stop and trainer.fit_loop._can_stop_early
    return in_this_epoch and (ends_early or (count + 1) % (trainer.val_check_batch or math.inf) == 0)


def check_is_restored(trainer: L.Trainer) -> None:
    """Raise `UsageError` if the state of a resumed run cannot be saved, because it is not restored yet."""
    if trainer._checkpoint_connector._loaded_checkpoint:
        raise UsageError(
            "The checkpoint of a resumed run must be saved in on_train_start or later, got an earlier save. The state "
            "of the run is not restored yet."
        )


def reset_evaluation_progress(trainer: L.Trainer) -> None:
    """Discard the episode that `force_evaluation_on_resume` counted as started."""
    trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.reset_on_restart()


def finish_last_update(trainer: L.Trainer) -> None:
    """Run the evaluation after the last update of a run that has stopped early.

    Lightning does not repeat it when the run is resumed.
    """
    loop: Any = trainer.fit_loop
    if loop._can_stop_early:
        loop.epoch_loop.on_advance_end(loop._data_fetcher)
        loop.on_advance_end()


def stopped_in_evaluation(checkpoint: dict[str, Any]) -> bool:
    """Return whether a checkpoint was saved during an evaluation."""
    counts = _progress(checkpoint, VALIDATION_PROGRESS)["total"]
    return bool(counts["ready"] > counts["completed"])


def restart_evaluation(checkpoint: dict[str, Any]) -> None:
    """Make the resumed run repeat the evaluation during which the checkpoint is saved, from its first episode."""
    progress = _progress(checkpoint, VALIDATION_PROGRESS)
    force_evaluation_on_resume(progress, progress["total"]["completed"] - progress["current"]["completed"])


def discard_update(checkpoint: dict[str, Any]) -> None:
    """Do not count the update whose start failed, so that the resumed run takes it and evaluates on time."""
    updates = _progress(checkpoint, TRAINING_PROGRESS)
    for counts in (updates["current"], updates["total"]):
        counts["ready"] = counts["started"] = counts["processed"]


def start_with_epoch(checkpoint: dict[str, Any]) -> None:
    """Make the resumed run begin with the epoch that begins when the checkpoint is saved, if one does.

    Lightning would end this epoch at once, because the counter of its updates is still that of the previous epoch.
    """
    epochs, updates = _progress(checkpoint, EPOCH_PROGRESS), _progress(checkpoint, TRAINING_PROGRESS)
    if epochs["current"]["ready"] > epochs["current"]["started"]:
        for counts in (epochs["current"], epochs["total"]):
            counts["ready"] = counts["started"]
        updates["current"] = dict.fromkeys(updates["current"], 0)
        updates["is_last_batch"] = False


def start_with_evaluation(checkpoint: dict[str, Any]) -> None:
    """Make the resumed run begin with the evaluation that follows the current update, if the update is complete."""
    updates, episodes = _progress(checkpoint, TRAINING_PROGRESS), _progress(checkpoint, VALIDATION_PROGRESS)
    if updates["current"]["processed"] > updates["current"]["completed"]:
        for counts in (updates["current"], updates["total"]):
            counts["completed"] = counts["processed"]
        force_evaluation_on_resume(episodes, episodes["total"]["completed"])


def force_evaluation_on_resume(progress: dict[str, Any], completed: int) -> None:
    """Make the resumed run begin with an evaluation.

    The counters become those of an evaluation that was interrupted in its first episode.

    Args:
        progress: The evaluation's progress in the checkpoint, which is changed in place.
        completed: Episodes of the earlier evaluations.
    """
    for counts, done in ((progress["current"], 0), (progress["total"], completed)):
        counts.update(ready=done + 1, started=done + 1, processed=done, completed=done)
    progress["is_last_batch"] = False


def _progress(checkpoint: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the counters of one loop in a checkpoint."""
    progress: dict[str, Any] = checkpoint["loops"]["fit_loop"][name]
    return progress

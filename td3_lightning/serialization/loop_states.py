"""Checks of the states of Lightning's loops."""

from collections.abc import Iterator
from typing import Any

from td3_lightning.serialization import values as form
from td3_lightning.serialization.values import InvalidValueError


def progress(value: Any, name: str) -> None:
    """Check for nested mappings of counts and flags, as Lightning's loops have them."""
    if isinstance(value, dict):
        form.by_name(progress)(value, name)
    elif isinstance(value, list | tuple):  # the loaders' states, which are empty
        form.series(form.fields({}))(value, name)
    elif not isinstance(value, bool):
        form.count(value, name)


def loop_states(value: Any, name: str) -> None:
    """Check for the state of Lightning's loops, with the counters that this package reads."""
    LOOPS(value, name)
    form.by_name(progress)(value, name)


def loader_states(value: Any, name: str) -> None:
    """Check for the states of the loaders, a list of at most one."""
    form.series(form.mapping)(value, name)
    if len(value) > 1:
        raise InvalidValueError(name, "a list of at most one state", value)


def check_loops(states: Any, loops: Iterator[tuple[str, Any]]) -> None:
    """Check the states of Lightning's loops against those of new loops.

    Args:
        states: The states in the checkpoint.
        loops: The name and the state of each new loop.
    """
    for loop, ours in loops:
        form.mapping(states.get(loop), f"loops.{loop}")
        for key, held in states[loop].items():
            if key.endswith("state_dict"):
                LOOP_STATE(held, f"loops.{loop}.{key}")
            else:
                form.alike(held, ours.get(key, held), f"loops.{loop}.{key}")


BATCHES = form.fields(
    {name: form.fields({"ready": form.count, "completed": form.count}) for name in ("current", "total")}
)
EPOCHS = form.fields({"current": form.fields({"processed": form.count})})
FIT_LOOP = {
    "epoch_progress": EPOCHS,
    "epoch_loop.batch_progress": BATCHES,
    "epoch_loop.val_loop.batch_progress": BATCHES,
}
LOOP_STATE = form.fields({}, {"combined_loader": loader_states, "_batches_that_stepped": form.count})
LOOPS = form.fields({"fit_loop": form.fields(FIT_LOOP)})

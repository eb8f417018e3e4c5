"""When a ModelCheckpoint saves.

Written for Lightning 2.6. `tests/checkpointing/test_save_triggers.py` fails if an attribute is renamed.
"""

from lightning.pytorch.callbacks import ModelCheckpoint


def saves_within_epochs(callback: ModelCheckpoint) -> bool:
    """Return whether a callback saves after a number of optimizer steps or after a time."""
    return bool(callback._every_n_train_steps) or callback._train_time_interval is not None

"""Filters for messages of Lightning that do not help a user of this package."""

import logging
import re
import warnings

# Lightning logs these at every start.
SUPPRESSED_MESSAGES = re.compile(
    r"[GT]PU available|💡 Tip|LOCAL_RANK|Seed set to|Restoring states from|`weights_only` was not|"
    r"Found current_model_state|You're using the WeightAveraging callback"
)

SUPPRESSED_WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)`",
    r"The number of training batches .* is smaller than the logging interval",
    r"Checkpoint directory .* exists and is not empty",  # true for every resumed run
    r"The dirpath has changed from",  # a resumed run may have another folder
    r"Be aware that when using `ckpt_path`, callbacks",
    r"It is recommended to use `self.log\(.*sync_dist",  # all ranks evaluate the same episodes
    r"The checkpoint was not created with WeightAveraging",  # a new stage may add averaging
)


def suppress_messages() -> None:
    """Suppress messages and warnings of Lightning."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(_is_useful)
    for message in SUPPRESSED_WARNINGS:
        warnings.filterwarnings("ignore", message)


def _is_useful(record: logging.LogRecord) -> bool:
    return not SUPPRESSED_MESSAGES.search(record.getMessage())

"""Template of the names of checkpoint files."""

import re

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from td3_lightning.errors import UsageError

LIGHTNINGS = ("epoch", "step")  # Lightning has these as integers, and all that a module logs as floats


def check_file_name(setting: str, keeper: ModelCheckpoint, whole: tuple[str, ...] = LIGHTNINGS) -> None:
    """Format a checkpoint's name once, before the run begins.

    Args:
        setting: What the user sets it by, for the error.
        keeper: The callback that has the name.
        whole: Metrics that are integers when the name is formatted.

    Raises:
        UsageError: The name is no template of metrics.
    """
    template = keeper.filename or ""
    metrics: dict[str, Tensor] = {name: torch.tensor(1.5) for name in re.findall(r"\{(.*?)[:\}]", template)}
    metrics |= {name: torch.tensor(1) for name in whole}
    try:
        keeper.format_checkpoint_name(metrics)
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{setting} must be a name with metrics in braces, with formats for floats, got {template} ({error}). "
            "Use for example steps_{env_steps:.0f}_return_{eval/return_mean:.2f}."
        ) from error

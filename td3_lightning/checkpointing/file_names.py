"""Check of the name template of checkpoint files."""

import re

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from td3_lightning.errors import UsageError

INTEGER_METRICS = ("epoch", "step")  # Lightning passes these as integers and logged metrics as floats


def check_file_name(setting: str, keeper: ModelCheckpoint, integers: tuple[str, ...] = INTEGER_METRICS) -> None:
    """Check a checkpoint's name template by formatting it once before the run begins.

    Args:
        setting: Name of the setting, for the error.
        keeper: The callback with the template.
        integers: Metrics that are integers in the template.

    Raises:
        UsageError: The template cannot be formatted.
    """
    template = keeper.filename or ""
    metrics: dict[str, Tensor] = {name: torch.tensor(1.5) for name in re.findall(r"\{(.*?)[:\}]", template)}
    metrics |= {name: torch.tensor(1) for name in integers}
    try:
        keeper.format_checkpoint_name(metrics)
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{setting} must be a name with metrics in braces, with formats for floats, got {template} ({error}). "
            "Use for example steps_{env_steps:.0f}_return_{eval/return_mean:.2f}."
        ) from error

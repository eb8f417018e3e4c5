"""Check of the name template of checkpoint files."""

import os
import re
from pathlib import Path

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from td3_lightning.errors import UsageError, refuse
from td3_lightning.reporting.paths import is_below

INTEGER_METRICS = ("epoch", "step")  # Lightning passes these as integers and logged metrics as floats
EXAMPLE = "Use for example steps_{env_steps:.0f}_return_{eval/return_mean:.2f}."
MAX_BYTES = 200  # of a name in which each metric is 1.5; file systems accept 255


def metrics_of(template: str) -> list[str]:
    """Return the metrics in a name template."""
    return re.findall(r"\{(.*?)[:\}]", template)


def without_metrics(template: str) -> str:
    """Return a name template without the metrics in braces, which may contain slashes."""
    return re.sub(r"\{.*?\}", "", template)


def check_file_name(setting: str, keeper: ModelCheckpoint, integers: tuple[str, ...] = INTEGER_METRICS) -> None:
    """Check a checkpoint's name template by formatting it once before the run begins.

    Args:
        setting: Name of the setting, for the error.
        keeper: The callback with the template.
        integers: Metrics that are integers in the template.

    Raises:
        UsageError: The template cannot be formatted, its file is outside of the callback's folder, or its name is too
            long.
    """
    template = keeper.filename or ""
    metrics: dict[str, Tensor] = {name: torch.tensor(1.5) for name in metrics_of(template)}
    metrics |= {name: torch.tensor(1) for name in integers}
    try:
        name = keeper.format_checkpoint_name(metrics)
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{setting} must be a name with metrics in braces, with formats for floats, got {template} ({error}). "
            f"{EXAMPLE}"
        ) from error
    if not is_below(without_metrics(template)):
        raise refuse(setting, "a name inside the checkpoint folder", template, EXAMPLE)
    if len(os.fsencode(Path(name).name)) > MAX_BYTES:
        raise refuse(setting, f"a name of at most {MAX_BYTES} bytes", template, EXAMPLE)


def check_best_name(keeper: ModelCheckpoint, integers: tuple[str, ...]) -> None:
    """Check the name template of the best checkpoints, which are in the folder of last.ckpt.

    Raises:
        UsageError: The template is invalid, contains a folder, or is the name of the last checkpoint.
    """
    check_file_name("checkpoint.filename", keeper, integers)
    template = keeper.filename or ""
    if "/" in (name := without_metrics(template)) or name in ("last", "last-1"):
        raise refuse("checkpoint.filename", "a name without a folder, other than last and last-1", template, EXAMPLE)

"""The precision of losses, and a check of the Trainer's device and precision."""

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from td3_lightning.errors import UsageError


def at_least_float32(values: Tensor) -> Tensor:
    """Convert numbers of a half-precision network to float32, because float16 overflows in gradients of a mean."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def check_precision(trainer: L.Trainer, max_grad_norm: float | None) -> None:
    """Raise `UsageError` if the device lacks float64, or if the precision makes steps or gradients wrong."""
    if trainer.strategy.root_device.type == "mps":
        raise UsageError("trainer.accelerator must support float64, got mps. Use cpu.")
    if trainer.precision == "16-true":
        raise UsageError(
            "trainer.precision must represent Adam's steps and its eps of 1e-8, got 16-true. Use bf16-mixed or 32-true."
        )
    if trainer.precision == "bf16-true":
        rank_zero_warn(
            "Precision bf16-true keeps 8 significant bits of each weight: most steps of Adam and of the Polyak average "
            "round to zero. Use bf16-mixed."
        )
    if max_grad_norm is not None and trainer.precision == "16-mixed":
        raise UsageError(
            "model.max_grad_norm requires unscaled gradients, got precision 16-mixed, which scales them. Use "
            "bf16-mixed or omit max_grad_norm."
        )

"""Backward pass of a linear layer that skips units whose ReLU is 0 in the whole batch.

Such dormant units have no gradient, so every product with it is 0. They can be most of a trained layer (Sokar et al.,
2023, "The Dormant Neuron Phenomenon in Deep Reinforcement Learning"). The functions are valid TorchScript, so that a
traced pass chooses the units again in each call.
"""

import torch
from torch import Tensor

AMX = torch.cpu._is_amx_tile_supported()  # on Intel CPUs with AMX, skipping units does not pay


def max_active_fraction() -> float:
    """Return the fraction of active units up to which skipping the others is faster; 0 if it never is.

    Measured with layers of 120,000 and 131,072 weights on an AMD EPYC and on an Intel Xeon with AMX.
    """
    return 0.0 if AMX else 0.6


@torch.jit.script_if_tracing
def sparse_linear_backward(
    inputs: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    grad_bias: Tensor,
    grad_weight: Tensor,
    grad_input: Tensor,
    max_active: float,
) -> Tensor:
    """Write the gradients of the weight and of the inputs, and return the latter.

    Args:
        inputs: Inputs of N layers, (N, batch, fan_in).
        grad_output: Gradient in the pre-activations, (N, batch, fan_out).
        weight: Weights (N, fan_in, fan_out).
        grad_bias: Sums of `grad_output` over the batch, (N, 1, fan_out).
        grad_weight: Receives the gradient of the weight.
        grad_input: Receives the gradient of the inputs.
        max_active: Result of `max_active_fraction`.
    """
    units = active_units(grad_output, grad_bias, max_active)
    if units is None:
        torch.bmm(inputs.mT, grad_output, out=grad_weight)
        torch.bmm(grad_output, weight.mT, out=grad_input)
    else:
        columns = units.expand(-1, weight.size(1), -1)
        active = grad_output.gather(2, units.expand(-1, grad_output.size(1), -1))
        grad_weight.zero_().scatter_(2, columns, torch.bmm(inputs.mT, active))
        torch.bmm(active, weight.gather(2, columns).mT, out=grad_input)
    return grad_input


def active_units(grad_output: Tensor, sums: Tensor, max_active: float, lanes: int = 16) -> Tensor | None:
    """Return the indices (N, 1, k) of the units with a gradient in any row, or None if skipping the others is slower.

    Args:
        grad_output: Gradient in the pre-activations, (N, batch, fan_out).
        sums: Its sums over the batch, (N, 1, fan_out), a quick first test.
        max_active: Fraction of active units from which all units are used.
        lanes: k is rounded up to a multiple of this vector width.
    """
    layers, _, fan_out = grad_output.shape
    if int(sums.count_nonzero()) < max_active * layers * fan_out:
        is_active = grad_output.amax(1).ne(0).logical_or(grad_output.amin(1).ne(0))
        count = (int(is_active.sum(1).max()) + lanes - 1) // lanes * lanes
        if count < max_active * fan_out:
            return is_active.sort(dim=1, descending=True, stable=True)[1][:, :count].unsqueeze(1)
    return None

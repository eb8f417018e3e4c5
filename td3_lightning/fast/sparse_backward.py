"""A layer's gradients without the units that are silent in a whole batch. A reader may skip this file.

A ReLU that gives 0 for every row of a batch has no slope in any, and all that it is multiplied by comes to 0. In a
trained network that can be most of a layer (Sokar et al. 2023, "The Dormant Neuron Phenomenon in Deep Reinforcement
Learning"); left out, they cost no time. What is here is TorchScript too, for a recording to choose anew each time.
"""

import torch
from torch import Tensor

AMX = torch.cpu._is_amx_tile_supported()  # Intel CPUs with it were measured apart from others


def max_active_fraction(layers: int, batch_size: int) -> float:
    """The share of a layer's units up to which it is quicker to take these alone; 0 where it is not worth a look.

    It was measured with layers of 120,000 and 131,072 weights. On an AMD EPYC small batches gain too; on an Intel Xeon
    taking units apart costs more beside the products, above all of a layer alone.
    """
    if not AMX:
        return 0.6
    most = batch_size / (batch_size + (300 if layers > 1 else 600))
    return most if most > 0.3 else 0.0


@torch.jit.script_if_tracing
def sparse_linear_backward(
    inputs: Tensor, slope: Tensor, weight: Tensor, bias_gradient: Tensor, gradient: Tensor, below: Tensor, most: float
) -> Tensor:
    """Writes the gradient of the weight, and gives the slope in the inputs.

    Args:
        inputs: Of N layers, (N, batch, fan_in).
        slope: In their sums, (N, batch, fan_out).
        weight: (N, fan_in, fan_out).
        bias_gradient: (N, 1, fan_out).
        gradient: Gets the weight's.
        below: What it gives, written there.
        most: What `max_active_fraction` says.
    """
    units = sparse_backward(slope, bias_gradient, most)
    if units is None:
        torch.bmm(inputs.mT, slope, out=gradient)
        torch.bmm(slope, weight.mT, out=below)
    else:
        columns = units.expand(-1, weight.size(1), -1)
        slopes = slope.gather(2, units.expand(-1, slope.size(1), -1))
        gradient.zero_().scatter_(2, columns, torch.bmm(inputs.mT, slopes))
        torch.bmm(slopes, weight.gather(2, columns).mT, out=below)
    return below


def sparse_backward(slope: Tensor, sums: Tensor, most: float, lanes: int = 16) -> Tensor | None:
    """The places (N, 1, some) of the units that have a slope in any row, filled up; None if it is as quick to take all.

    Args:
        slope: (N, batch, fan_out).
        sums: The slope's over the rows, (N, 1, fan_out); it is looked at again only if many are 0.
        most: Share of the units from which on all are taken.
        lanes: Numbers that a processor multiplies at once, to a multiple of which it is filled up.
    """
    layers, _, fan_out = slope.shape
    if int(sums.count_nonzero()) < most * layers * fan_out:
        is_awake = slope.amax(1).ne(0).logical_or(slope.amin(1).ne(0))
        some = (int(is_awake.sum(1).max()) + lanes - 1) // lanes * lanes
        if some < most * fan_out:
            return is_awake.sort(dim=1, descending=True, stable=True)[1][:, :some].unsqueeze(1)
    return None

"""Forward and backward passes of plain multilayer perceptrons without autograd."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from td3_lightning.fast.eligibility import EPSILON
from td3_lightning.fast.sparse_backward import AMX, max_active_fraction, sparse_linear_backward

if TYPE_CHECKING:
    pass


WIDE = 192  # inputs and outputs from which on a layer is worth the way to bfloat16 and back


LARGE = 100_000  # weights from which on a layer is worth a look at how many of its units are silent


FEW = 16  # inputs or outputs from which on a product of them is as quick written transposed


LANES = 16  # numbers that a processor works on at once


BIAS_WITH_RELU = AMX  # where a bias is added with the ReLU, in one pass; elsewhere the product is quicker at it


class Layer(NamedTuple):
    """The weights of N linear layers and of the normalisation after each, or their gradients."""

    weight: Tensor  # (N, fan_in, fan_out)
    bias: Tensor  # (N, 1, fan_out)
    norm: list[Tensor]  # gain and shift (fan_out,) of the normalisation, or nothing; N is 1 where there is one


Layers = list[Layer]  # the first one first


class LinearKernel:
    """N linear layers, with a ReLU after each or without, and their gradients.

    Args:
        layer: Their weights.
        batch_size: Rows of every input.
        rectified: Whether with a ReLU.
    """

    def __init__(self, layer: Layer, batch_size: int, rectified: bool = False) -> None:
        self.weight, self.bias, self.rectified = layer.weight, layer.bias, rectified
        comes_out_even = layer.weight.shape[2] % LANES == 0  # a NaN in what is left over would be lost
        self.adds_and_rectifies = rectified and comes_out_even and layer.weight.dtype == torch.float32
        self.inputs = layer.weight.new_empty(0)  # what `forward` was given last

    def new_outputs(self, batch_size: int) -> Tensor:
        """Memory (N, batch, fan_out) for what it gives."""
        return self.weight.new_empty(len(self.weight), batch_size, self.weight.shape[2])

    def with_weights(self, layer: Layer) -> LinearKernel:
        """The same for other weights of these shapes, or of fewer layers, in the same memory."""
        other = copy.copy(self)
        other.weight, other.bias = layer.weight, layer.bias
        return other

    def forward(self, inputs: Tensor, out: Tensor) -> Tensor:
        """Writes the sums or their ReLUs (N, batch, fan_out) for inputs (N, batch, fan_in)."""
        self.inputs = inputs
        if self.adds_and_rectifies and BIAS_WITH_RELU:
            return _add_and_rectify(torch.bmm(inputs, self.weight, out=out), self.bias)
        torch.baddbmm(self.bias, inputs, self.weight, out=out)
        return out.relu_() if self.rectified else out

    def differentiate(self, slope: Tensor, gradients: Layer | None, below: Tensor | None) -> None:
        """Writes the gradients and the slope in the inputs, where wanted, given that in the sums."""
        if gradients is not None:
            torch.sum(slope, 1, keepdim=True, out=gradients.bias)
            self.of_weight(slope, gradients.weight)
        if below is not None:
            self.of_inputs(slope, below)

    def of_weight(self, slope: Tensor, gradient: Tensor) -> None:
        """Writes the gradient of the weight, given the slope in the sums."""
        torch.bmm(self.inputs.mT, slope, out=gradient)

    def of_inputs(self, slope: Tensor, below: Tensor) -> None:
        """Writes the slope in the inputs, given that in the sums."""
        times = torch.mul if slope.shape[2] == 1 else torch.bmm  # of one column, each sum is one product
        times(slope, self.weight.mT, out=below)


class SparseBackwardLinear(LinearKernel):
    """The same for large layers, at less work where ReLUs are silent in the whole batch, so that they have no slope."""

    def __init__(self, layer: Layer, batch_size: int, rectified: bool = False) -> None:
        super().__init__(layer, batch_size, rectified)
        self.most = max_active_fraction(len(layer.weight), batch_size)

    def differentiate(self, slope: Tensor, gradients: Layer | None, below: Tensor | None) -> None:
        """Writes the gradients and the slope in the inputs, where wanted, given that in the sums."""
        if gradients is None or below is None:  # half as much to gain
            super().differentiate(slope, gradients, below)
        else:
            torch.sum(slope, 1, keepdim=True, out=gradients.bias)
            sparse_linear_backward(self.inputs, slope, self.weight, gradients.bias, gradients.weight, below, self.most)


class NarrowOutputLinear(LinearKernel):
    """The same for few outputs, written as rows: a thread then reads the inputs that it wrote, not another's cache."""

    def new_outputs(self, batch_size: int) -> Tensor:
        """Memory (N, batch, fan_out) for what it gives."""
        return super().new_outputs(batch_size).view(len(self.weight), -1, batch_size).mT

    def forward(self, inputs: Tensor, out: Tensor) -> Tensor:
        """Writes the sums (N, batch, fan_out) for inputs (N, batch, fan_in)."""
        self.inputs = inputs
        torch.baddbmm(self.bias.mT, self.weight.mT, inputs.mT, out=out.mT)
        return out

    def of_weight(self, slope: Tensor, gradient: Tensor) -> None:
        """Writes the gradient of the weight, given the slope in the sums."""
        torch.bmm(slope.mT, self.inputs, out=gradient.mT)


class NarrowInputLinear(LinearKernel):
    """The same for weights (fan_out, fan_in) in memory: their gradient is quicker written in rows, then transposed."""

    def __init__(self, layer: Layer, batch_size: int, rectified: bool = False) -> None:
        super().__init__(layer, batch_size, rectified)
        self.gradient = layer.weight.new_empty(layer.weight.shape)

    def of_weight(self, slope: Tensor, gradient: Tensor) -> None:
        """Writes the gradient of the weight, given the slope in the sums."""
        gradient.copy_(torch.bmm(self.inputs.mT, slope, out=self.gradient))


class BFloat16Linear(LinearKernel):
    """The same from float32 to float32, with products of bfloat16 between."""

    def __init__(self, layer: Layer, batch_size: int, rectified: bool = False) -> None:
        super().__init__(layer, batch_size, rectified)
        members, fan_in, fan_out = layer.weight.shape
        self.halved = torch.empty_like(layer.weight, dtype=torch.bfloat16)
        self.inputs, self.below = self.halved.new_empty(2, members, batch_size, fan_in)
        self.sums, self.slope = self.halved.new_empty(2, members, batch_size, fan_out)
        self.gradient = torch.empty_like(self.halved)

    def with_weights(self, layer: Layer) -> LinearKernel:
        """The same for other weights of these shapes, or of fewer layers, in the same memory."""
        other, members = super().with_weights(layer), len(layer.weight)
        for name in ("halved", "inputs", "below", "sums", "slope", "gradient"):
            setattr(other, name, getattr(self, name)[:members])
        return other

    def forward(self, inputs: Tensor, out: Tensor) -> Tensor:
        """Writes the sums or their ReLUs (N, batch, fan_out) for inputs (N, batch, fan_in)."""
        torch._foreach_copy_([self.inputs, self.halved], [inputs, self.weight])
        out.copy_(torch.bmm(self.inputs, self.halved, out=self.sums))
        if self.adds_and_rectifies:
            return _add_and_rectify(out, self.bias)
        out.add_(self.bias)
        return out.relu_() if self.rectified else out

    def differentiate(self, slope: Tensor, gradients: Layer | None, below: Tensor | None) -> None:
        """Writes the gradients and the slope in the inputs, where wanted, given that in the sums."""
        self.slope.copy_(slope)
        super().differentiate(slope, gradients, below)

    def of_weight(self, slope: Tensor, gradient: Tensor) -> None:
        """Writes the gradient of the weight, given the slope in the sums."""
        gradient.copy_(_written_in_rows(self.inputs.mT, self.slope, self.gradient))

    def of_inputs(self, slope: Tensor, below: Tensor) -> None:
        """Writes the slope in the inputs, given that in the sums."""
        below.copy_(torch.bmm(self.slope, self.halved.mT, out=self.below))


class BatchedMLP:
    """N networks of linear layers with a ReLU after all but the last, and their gradients.

    A layer may be normalised before its ReLU, where N is 1.

    Args:
        layers: Their weights.
        batch_size: Rows of every input.
        halved: Whether products between wide layers are of bfloat16.
    """

    def __init__(self, layers: Layers, batch_size: int, halved: bool = False) -> None:
        self.layers = layers
        rectified = [*(not layer.norm for layer in layers[:-1]), False]
        self.products = [
            _kind(layer, batch_size, relu, halved)(layer, batch_size, relu)
            for layer, relu in zip(layers, rectified, strict=True)
        ]
        self.sums = [product.new_outputs(batch_size) for product in self.products]
        self.outputs = list(self.sums)  # the same tensors where nothing is normalised
        self.moments: list[list[Tensor]] = [[] for _ in layers]  # each row's, where something is
        self.slopes = [torch.empty_like(outputs) for outputs in self.outputs[:-1]]  # the loss's, in what each gives

    def with_weights(self, layers: Layers) -> BatchedMLP:
        """The same for other weights of these shapes, or of fewer networks.

        It is used after this one: it writes over what this one remembers.
        """
        other, members = copy.copy(self), len(layers[0].weight)
        other.layers = layers
        other.products = [product.with_weights(layer) for product, layer in zip(self.products, layers, strict=True)]
        other.sums, other.slopes = [each[:members] for each in self.sums], [each[:members] for each in self.slopes]
        other.outputs, other.moments = list(other.sums), [[] for _ in layers]
        return other

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs (N, batch, fan_out) for inputs (N, batch, fan_in); the next call overwrites them."""
        hidden = inputs
        for depth, layer in enumerate(self.layers):
            hidden = self.products[depth].forward(hidden, out=self.sums[depth])
            if layer.norm:
                gain, shift = layer.norm
                hidden, *self.moments[depth] = torch.native_layer_norm(hidden, gain.shape, gain, shift, EPSILON)
                self.outputs[depth] = hidden.relu_()
        return hidden

    def differentiate(self, slope: Tensor, gradients: Layers) -> None:
        """Writes the gradients of all layers, given the loss's slope (N, batch, fan_out) in the outputs."""
        for depth in reversed(range(1, len(self.layers))):
            slope = self._slope_below(depth, self._slope_in_sums(depth, slope, gradients[depth]), gradients[depth])
        self.products[0].differentiate(self._slope_in_sums(0, slope, gradients[0]), gradients[0], None)

    def slope_in_inputs(self, slope: Tensor, columns: int) -> Tensor:
        """The loss's slope (N, batch, columns) in the last columns of the inputs, given that in the outputs."""
        for depth in reversed(range(1, len(self.layers))):
            slope = self._slope_below(depth, self._slope_in_sums(depth, slope))
        slope, weight = self._slope_in_sums(0, slope), self.layers[0].weight[:, -columns:]  # too few for bfloat16
        rows = slope.new_empty(*weight.shape[:2], slope.shape[1])  # quicker to write than columns
        return torch.bmm(weight, slope.mT, out=rows).mT

    def _slope_in_sums(self, depth: int, slope: Tensor, gradients: Layer | None = None) -> Tensor:
        """From the slope in what a layer's normalisation makes, if it has one, whose gradients it writes if wanted."""
        norm, wanted = self.layers[depth].norm, gradients is not None
        if not norm:
            return slope
        below: Tensor
        below, *of_norm = torch.ops.aten.native_layer_norm_backward(
            slope, self.sums[depth], norm[0].shape, *self.moments[depth], *norm, [True, wanted, wanted]
        )
        if gradients is not None:
            torch._foreach_copy_(gradients.norm, of_norm)
        return below

    def _slope_below(self, depth: int, slope: Tensor, gradients: Layer | None = None) -> Tensor:
        """From the slope in a layer's sums, that in the layer before it, ahead of its ReLU."""
        below, outputs = self.slopes[depth - 1], self.outputs[depth - 1]
        self.products[depth].differentiate(slope, gradients, below)
        torch.ops.aten.threshold_backward.grad_input(below, outputs, 0, grad_input=below)  # 0 where the ReLU gave 0
        return below


def _kind(layer: Layer, batch_size: int, rectified: bool, halved: bool) -> type[LinearKernel]:
    """How a layer's products are done."""
    members, fan_in, fan_out = layer.weight.shape
    if halved and min(fan_in, fan_out) >= WIDE:
        return BFloat16Linear
    if fan_in * fan_out >= LARGE and max_active_fraction(members, batch_size):
        return SparseBackwardLinear
    if fan_in < FEW and not layer.weight.is_contiguous():
        return NarrowInputLinear
    return NarrowOutputLinear if fan_out < FEW and not (rectified or layer.norm) else LinearKernel


def _add_and_rectify(sums: Tensor, bias: Tensor) -> Tensor:
    """Writes the ReLUs of sums and biases over the sums, in one pass."""
    rectified: Tensor = torch.ops.aten._add_relu_(sums, bias)
    return rectified


def _written_in_rows(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """The product (N, rows, columns), as that of the transposed where `out` is; else one of bfloat16 takes for ever."""
    if out.is_contiguous():
        return torch.bmm(left, right, out=out)
    return torch.bmm(right.mT, left.mT, out=out.mT).mT

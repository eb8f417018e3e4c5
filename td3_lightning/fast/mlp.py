"""Forward and backward passes of multilayer perceptrons without autograd, in buffers that are reused.

Shapes: N networks on the first axis, then the batch, then the features. `pre_activations` are the outputs of a linear
layer; `grad_output` is the loss's gradient with respect to them, `grad_input` with respect to the layer's input.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor

from td3_lightning.fast.eligibility import EPSILON

WIDE = 192  # inputs and outputs from which converting a layer to bfloat16 pays
LANES = 16  # float32 numbers in a vector register
FUSE_BIAS_AND_RELU = torch.cpu._is_amx_tile_supported()  # elsewhere the product adds the bias faster


class Layer(NamedTuple):
    """Parameters of N linear layers and of the layer norm after each, or their gradients."""

    weight: Tensor  # (N, fan_in, fan_out)
    bias: Tensor  # (N, 1, fan_out)
    norm: list[Tensor]  # gain and shift (fan_out,) of the layer norm, or nothing; N is 1 if there is one


Layers = list[Layer]


class LinearKernel:
    """Compute N linear layers, each with a ReLU or without, and their gradients.

    Args:
        layer: The parameters.
        batch_size: Rows of every input.
        relu: Whether a ReLU follows.
    """

    def __init__(self, layer: Layer, batch_size: int, relu: bool = False) -> None:
        self.weight, self.bias, self.relu = layer.weight, layer.bias, relu
        divides_evenly = layer.weight.shape[2] % LANES == 0  # _add_relu_ loses a NaN in the remainder
        self.fuses = relu and divides_evenly and layer.weight.dtype == torch.float32
        self.inputs = layer.weight.new_empty(0)  # of the last forward pass

    def with_weights(self, layer: Layer) -> LinearKernel:
        """Return a kernel for other parameters of these shapes, or of fewer layers, that shares the buffers."""
        other = copy.copy(self)
        other.weight, other.bias = layer.weight, layer.bias
        return other

    def forward(self, inputs: Tensor, out: Tensor) -> Tensor:
        """Write the pre-activations, or their ReLUs, (N, batch, fan_out), for inputs (N, batch, fan_in)."""
        self.inputs = inputs
        if self.fuses and FUSE_BIAS_AND_RELU:
            return _add_relu(torch.bmm(inputs, self.weight, out=out), self.bias)
        torch.baddbmm(self.bias, inputs, self.weight, out=out)
        return out.relu_() if self.relu else out

    def backward(self, grad_output: Tensor, gradients: Layer | None, grad_input: Tensor | None) -> None:
        """Write the gradients of the parameters and of the inputs, each if it is given."""
        if gradients is not None:
            torch.sum(grad_output, 1, keepdim=True, out=gradients.bias)
            self.weight_backward(grad_output, gradients.weight)
        if grad_input is not None:
            self.input_backward(grad_output, grad_input)

    def weight_backward(self, grad_output: Tensor, grad_weight: Tensor) -> None:
        """Write the gradient of the weight."""
        torch.bmm(self.inputs.mT, grad_output, out=grad_weight)

    def input_backward(self, grad_output: Tensor, grad_input: Tensor) -> None:
        """Write the gradient of the inputs."""
        multiply = torch.mul if grad_output.shape[2] == 1 else torch.bmm  # one column: each sum has one term
        multiply(grad_output, self.weight.mT, out=grad_input)


class BFloat16Linear(LinearKernel):
    """Kernel with float32 inputs and outputs and bfloat16 products."""

    def __init__(self, layer: Layer, batch_size: int, relu: bool = False) -> None:
        super().__init__(layer, batch_size, relu)
        members, fan_in, fan_out = layer.weight.shape
        self.bf16 = torch.empty_like(layer.weight, dtype=torch.bfloat16)
        self.inputs, self.grad_input = self.bf16.new_empty(2, members, batch_size, fan_in)
        self.pre_activations, self.grad_output = self.bf16.new_empty(2, members, batch_size, fan_out)
        self.grad_weight = torch.empty_like(self.bf16)

    def with_weights(self, layer: Layer) -> LinearKernel:
        """Return a kernel for other parameters of these shapes, or of fewer layers, that shares the buffers."""
        other, members = super().with_weights(layer), len(layer.weight)
        for name in ("bf16", "inputs", "grad_input", "pre_activations", "grad_output", "grad_weight"):
            setattr(other, name, getattr(self, name)[:members])
        return other

    def forward(self, inputs: Tensor, out: Tensor) -> Tensor:
        """Write the pre-activations, or their ReLUs, (N, batch, fan_out), for inputs (N, batch, fan_in)."""
        torch._foreach_copy_([self.inputs, self.bf16], [inputs, self.weight])
        out.copy_(torch.bmm(self.inputs, self.bf16, out=self.pre_activations))
        if self.fuses:
            return _add_relu(out, self.bias)
        out.add_(self.bias)
        return out.relu_() if self.relu else out

    def backward(self, grad_output: Tensor, gradients: Layer | None, grad_input: Tensor | None) -> None:
        """Write the gradients of the parameters and of the inputs, each if it is given."""
        self.grad_output.copy_(grad_output)
        super().backward(grad_output, gradients, grad_input)

    def weight_backward(self, grad_output: Tensor, grad_weight: Tensor) -> None:
        """Write the gradient of the weight."""
        left, right, out = self.inputs.mT, self.grad_output, self.grad_weight
        if out.is_contiguous():
            grad_weight.copy_(torch.bmm(left, right, out=out))
        else:  # transposed bfloat16 outputs are very slow
            grad_weight.copy_(torch.bmm(right.mT, left.mT, out=out.mT).mT)

    def input_backward(self, grad_output: Tensor, grad_input: Tensor) -> None:
        """Write the gradient of the inputs."""
        grad_input.copy_(torch.bmm(self.grad_output, self.bf16.mT, out=self.grad_input))


class BatchedMLP:
    """N multilayer perceptrons with a ReLU after all layers but the last, and their gradients.

    Each input has `batch_size` rows. A layer norm may precede a ReLU if N is 1. With `bf16`, products between wide
    layers are computed in bfloat16.
    """

    def __init__(self, layers: Layers, batch_size: int, bf16: bool = False) -> None:
        self.layers = layers
        relus = [*(not layer.norm for layer in layers[:-1]), False]
        self.kernels = [
            (BFloat16Linear if bf16 and min(layer.weight.shape[1:]) >= WIDE else LinearKernel)(layer, batch_size, relu)
            for layer, relu in zip(layers, relus, strict=True)
        ]
        self.pre_activations = [each.bias.new_empty(len(each.bias), batch_size, each.bias.shape[2]) for each in layers]
        self.outputs = list(self.pre_activations)  # the same tensors without layer norm
        self.norm_stats: list[list[Tensor]] = [[] for _ in layers]  # mean and reciprocal deviation of each row
        self.grad_outputs = [torch.empty_like(outputs) for outputs in self.outputs[:-1]]

    def with_weights(self, layers: Layers) -> BatchedMLP:
        """Return networks for other parameters of these shapes, or of fewer networks, that share the buffers.

        A pass of one overwrites what a pass of the other has stored.
        """
        other, members = copy.copy(self), len(layers[0].weight)
        other.layers = layers
        other.kernels = [kernel.with_weights(layer) for kernel, layer in zip(self.kernels, layers, strict=True)]
        other.pre_activations = [each[:members] for each in self.pre_activations]
        other.grad_outputs = [each[:members] for each in self.grad_outputs]
        other.outputs, other.norm_stats = list(other.pre_activations), [[] for _ in layers]
        return other

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute outputs (N, batch, fan_out) for inputs (N, batch, fan_in); the next call overwrites them."""
        hidden = inputs
        for depth, layer in enumerate(self.layers):
            hidden = self.kernels[depth].forward(hidden, out=self.pre_activations[depth])
            if layer.norm:
                gain, shift = layer.norm
                hidden, *self.norm_stats[depth] = torch.native_layer_norm(hidden, gain.shape, gain, shift, EPSILON)
                self.outputs[depth] = hidden.relu_()
        return hidden

    def backward(self, grad_output: Tensor, gradients: Layers) -> None:
        """Write the gradients of all parameters, given the loss's gradient (N, batch, fan_out) in the outputs."""
        for depth in reversed(range(1, len(self.layers))):
            grad_output = self._norm_backward(depth, grad_output, gradients[depth])
            grad_output = self._layer_backward(depth, grad_output, gradients[depth])
        self.kernels[0].backward(self._norm_backward(0, grad_output, gradients[0]), gradients[0], None)

    def grad_input(self, grad_output: Tensor, columns: int) -> Tensor:
        """Return the loss's gradient (N, batch, columns) in the last columns of the inputs."""
        for depth in reversed(range(1, len(self.layers))):
            grad_output = self._layer_backward(depth, self._norm_backward(depth, grad_output))
        weight = self.layers[0].weight[:, -columns:]  # too few columns for bfloat16
        grad_output = self._norm_backward(0, grad_output)
        rows = grad_output.new_empty(*weight.shape[:2], grad_output.shape[1])  # rows are written faster than columns
        return torch.bmm(weight, grad_output.mT, out=rows).mT

    def _norm_backward(self, depth: int, grad_output: Tensor, gradients: Layer | None = None) -> Tensor:
        """Propagate a gradient back through the norm of a layer, if it has one, to the pre-activations."""
        norm, needed = self.layers[depth].norm, gradients is not None
        if not norm:
            return grad_output
        grad_input: Tensor
        grad_input, *grad_norm = torch.ops.aten.native_layer_norm_backward(
            grad_output,
            self.pre_activations[depth],
            norm[0].shape,
            *self.norm_stats[depth],
            *norm,
            [True, needed, needed],
        )
        if gradients is not None:
            torch._foreach_copy_(gradients.norm, grad_norm)
        return grad_input

    def _layer_backward(self, depth: int, grad_output: Tensor, gradients: Layer | None = None) -> Tensor:
        """Propagate a gradient back from the pre-activations of a layer to before the previous layer's ReLU."""
        grad_input, outputs = self.grad_outputs[depth - 1], self.outputs[depth - 1]
        self.kernels[depth].backward(grad_output, gradients, grad_input)
        torch.ops.aten.threshold_backward.grad_input(grad_input, outputs, 0, grad_input=grad_input)
        return grad_input


def _add_relu(pre_activations: Tensor, bias: Tensor) -> Tensor:
    """Add the bias and apply the ReLU in place, in one pass."""
    outputs: Tensor = torch.ops.aten._add_relu_(pre_activations, bias)
    return outputs

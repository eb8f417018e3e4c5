"""The gradients of an update written out, for plain networks in one process on a CPU.

`module.py` says what an update is, and leaves its gradients to autograd. This file comes to the same gradients with
fewer passes over memory: buffers that stay, and that the networks share, so that the cache has them, as each network is
done with before the next one begins; critics side by side where each thread has as many of them; ReLUs in place, with
the bias where that is quicker; no product that nobody asks for, nor with many units that are silent in the whole batch;
and all operations of a pass as one. With precision bf16-mixed the products between wide layers are of bfloat16, and
everything else is of float32. A reader may skip it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from td3_lightning.awake import AMX, gradients_of_awake, most_awake
from td3_lightning.direct_adam import DirectAdam, is_plain_step
from td3_lightning.hooks import is_awaited
from td3_lightning.ranks import ranks
from td3_lightning.recorded import Recorded
from td3_lightning.replay import Batch
from td3_lightning.unchanged import EPSILON, Unchanged, is_plain

if TYPE_CHECKING:
    from td3_lightning.module import TD3

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


class Product:
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

    def with_weights(self, layer: Layer) -> Product:
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


class LargeProduct(Product):
    """The same for large layers, at less work where ReLUs are silent in the whole batch, so that they have no slope."""

    def __init__(self, layer: Layer, batch_size: int, rectified: bool = False) -> None:
        super().__init__(layer, batch_size, rectified)
        self.most = most_awake(len(layer.weight), batch_size)

    def differentiate(self, slope: Tensor, gradients: Layer | None, below: Tensor | None) -> None:
        """Writes the gradients and the slope in the inputs, where wanted, given that in the sums."""
        if gradients is None or below is None:  # half as much to gain
            super().differentiate(slope, gradients, below)
        else:
            torch.sum(slope, 1, keepdim=True, out=gradients.bias)
            gradients_of_awake(self.inputs, slope, self.weight, gradients.bias, gradients.weight, below, self.most)


class FewOutputs(Product):
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


class FewInputs(Product):
    """The same for weights (fan_out, fan_in) in memory: their gradient is quicker written in rows, then transposed."""

    def __init__(self, layer: Layer, batch_size: int, rectified: bool = False) -> None:
        super().__init__(layer, batch_size, rectified)
        self.gradient = layer.weight.new_empty(layer.weight.shape)

    def of_weight(self, slope: Tensor, gradient: Tensor) -> None:
        """Writes the gradient of the weight, given the slope in the sums."""
        gradient.copy_(torch.bmm(self.inputs.mT, slope, out=self.gradient))


class HalvedProduct(Product):
    """The same from float32 to float32, with products of bfloat16 between."""

    def __init__(self, layer: Layer, batch_size: int, rectified: bool = False) -> None:
        super().__init__(layer, batch_size, rectified)
        members, fan_in, fan_out = layer.weight.shape
        self.halved = torch.empty_like(layer.weight, dtype=torch.bfloat16)
        self.inputs, self.below = self.halved.new_empty(2, members, batch_size, fan_in)
        self.sums, self.slope = self.halved.new_empty(2, members, batch_size, fan_out)
        self.gradient = torch.empty_like(self.halved)

    def with_weights(self, layer: Layer) -> Product:
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


class Perceptrons:
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

    def with_weights(self, layers: Layers) -> Perceptrons:
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


class ByHand:
    """Puts the gradients of `TD3.critic_loss` and `TD3.actor_loss` where the optimizers look for them.

    They are autograd's but for the order of sums; under autocast they are rounded in fewer places than autograd's.

    Args:
        module: Whose networks these are.
        batch_size: Transitions in a batch.
    """

    def __init__(self, module: TD3, batch_size: int) -> None:
        self.module, self.batch_size = module, batch_size
        self.autocast = _autocast()
        self.adam = DirectAdam() if is_plain_step(module) else None
        self.unchanged = Unchanged(self._networks())
        # Walking through a module for its parameters takes longer than averaging them.
        self.actor_weights: list[Tensor] = list(module.actor.parameters())
        self.critic_weights: list[Tensor] = list(module.critics.parameters())
        self.online = self.actor_weights + self.critic_weights
        self.sources = [weight.detach() for weight in self.online]
        self.targets = [*_weights(module.actor_target), *_weights(module.critics_target)]
        self.together = self._critics_together()
        actor, actor_target = (self._actor_layers(_weights(each)) for each in (module.actor, module.actor_target))
        critics, targets = (self._critic_layers(_weights(each)) for each in (module.critics, module.critics_target))
        self.actor = Perceptrons(actor, batch_size, self.autocast is not None)
        self.actor_target = self.actor.with_weights(actor_target)
        some = Perceptrons(critics[0], batch_size, self.autocast is not None)
        self.critics, self.critics_target = ([some.with_weights(each) for each in nets] for nets in (critics, targets))
        self.first_critic = some.with_weights([_apart(layer)[0] for layer in critics[0]])
        self.actor_gradients, self.critic_gradients = (
            [torch.zeros_like(weight) for weight in weights] for weights in (self.actor_weights, self.critic_weights)
        )
        self._of_actor = self._actor_layers(self.actor_gradients)
        self._of_critics = self._critic_layers(self.critic_gradients)
        self._critics_pass: Callable[..., Any] = self._differentiate_critics
        self._actor_pass: Callable[..., Any] = self._differentiate_actor
        if not module.hparams["layer_norm"]:  # whose slope cannot be recorded
            self._critics_pass = Recorded(self._differentiate_critics, self._memory)
            self._actor_pass = Recorded(self._differentiate_actor, self._memory)

    def _memory(self) -> Iterator[Tensor]:
        """All tensors that a pass reads or writes, but for a batch and its noise."""
        boxes = [tensor for actor in (self.module.actor, self.module.actor_target) for tensor in actor.buffers()]
        return _tensors_in([boxes, *vars(self).values()])

    @staticmethod
    def suits(module: TD3, batch: Batch) -> bool:
        """Whether the networks are plain ones of one process, on a CPU, and nobody listens in."""
        networks = module.actor, module.critics
        return (  # the cheapest first: where it does not suit, it is asked in every update
            batch.obs.device.type == "cpu"
            and _autocast() in (None, torch.bfloat16)
            and module.hparams["encoder"] is None
            and ranks() == 1
            and all(map(is_plain, networks))
            and all(_are_trained(network.parameters()) for network in networks)
            and not is_awaited(module, "on_before_backward", "on_after_backward")
        )

    def fits(self, batch: Batch) -> bool:
        """Whether the batch has the size that it was made for, and the networks are as they were, where they were."""
        same = batch.reward.shape[0] == self.batch_size and self.autocast == _autocast()
        return same and self.unchanged.are(self._networks()) and _are_trained(self.online)

    def _networks(self) -> list[nn.Module]:
        modules: Any = self.module._modules  # four times as fast as its attributes
        return [modules["actor"], modules["critics"], modules["actor_target"], modules["critics_target"]]

    def _critics_together(self) -> int:
        """How many critics one product is for: all, if each thread has as many of them; otherwise one.

        A thread then works on critics of its own, and finds what it made in its own cache, product after product.
        """
        critics, threads = self.module.critics.num_critics, torch.get_num_threads()
        comes_out_even = threads > 1 and critics % threads == 0
        return critics if comes_out_even and not self.module.hparams["layer_norm"] else 1

    def _actor_layers(self, tensors: Sequence[Tensor]) -> Layers:
        """From the actor's parameters or their gradients; its weights are (fan_out, fan_in)."""
        return self._layers([tensor.t().unsqueeze(0) for tensor in tensors])

    def _critic_layers(self, tensors: Sequence[Tensor]) -> list[Layers]:
        """From the critics' parameters or their gradients, those that are together in one."""
        parts = self.module.critics.num_critics // self.together
        return [self._layers(some) for some in zip(*(tensor.chunk(parts) for tensor in tensors), strict=True)]

    def _layers(self, tensors: Sequence[Tensor]) -> Layers:
        each = 4 if self.module.hparams["layer_norm"] else 2
        layers = (tensors[first : first + each] for first in range(0, len(tensors), each))
        return [
            Layer(weight, bias.view(len(weight), 1, -1), [vector.view(-1) for vector in norm])
            for weight, bias, *norm in layers
        ]

    def of_critics(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sets the critics' gradients; gives their loss and Q-values (N, batch)."""
        noise = self.module.draw_noise(batch.action)
        with torch.no_grad():
            found: tuple[Tensor, Tensor] = self._critics_pass(*batch, noise)
        _hand_over(self.critic_weights, self.critic_gradients)
        return found

    def _differentiate_critics(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """The critics' loss and Q-values, given the batch and the noise; writes their gradients."""
        batch, noise = Batch(*tensors[:-1]), tensors[-1]
        target, values, errors = self._target(batch, noise), [], []
        inputs = self._for_critics(batch.obs, batch.action)
        for critics, gradients in zip(self.critics, self._of_critics, strict=True):
            q = critics.forward(inputs)
            error = q - target
            values.append(q.clone())
            errors.append(error)
            critics.differentiate(error * (2 / self.batch_size), gradients)
        every = _joined(errors).reshape(-1)
        return every.dot(every) / self.batch_size, _joined(values)

    def _target(self, batch: Batch, noise: Tensor) -> Tensor:
        """`TD3.target`, (batch, 1), with noise (batch, action_dim)."""
        actor = self.module.actor_target
        centre, scale = actor.centre, actor.scale
        action = centre + scale * torch.tanh(self.actor_target.forward(batch.next_obs.unsqueeze(0)))
        inputs = self._for_critics(batch.next_obs, self.module.smoothed_by(action[0], noise))
        least = [critics.forward(inputs).amin(dim=0) for critics in self.critics_target]
        next_q = least[0] if len(least) == 1 else torch.stack(least).amin(dim=0)
        return batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * next_q

    def _for_critics(self, obs: Tensor, action: Tensor) -> Tensor:
        """The inputs (together, batch, obs_dim + action_dim) of critics, the same ones for each."""
        return torch.cat([obs, action], dim=1).expand(self.together, -1, -1)

    def of_actor(self, batch: Batch) -> Tensor:
        """Sets the actor's gradient; gives its loss."""
        with torch.no_grad():
            loss: Tensor = self._actor_pass(*batch)
        _hand_over(self.actor_weights, self.actor_gradients)
        return loss

    def _differentiate_actor(self, *tensors: Tensor) -> Tensor:
        """The actor's loss, given the batch; writes its gradient."""
        batch = Batch(*tensors)
        actor = self.module.actor
        centre, scale = actor.centre, actor.scale
        obs = batch.obs.unsqueeze(0)
        squashed = torch.tanh(self.actor.forward(obs))
        q = self.first_critic.forward(torch.cat([obs, centre + scale * squashed], dim=2))
        in_action = self.first_critic.slope_in_inputs(torch.full_like(q, -1 / self.batch_size), len(scale))
        self.actor.differentiate(in_action * scale * (1 - squashed.square()), self._of_actor)
        return -q.mean()

    def step(self, optimizer: Optimizer | LightningOptimizer) -> None:
        """Takes the optimizer's step."""
        if not (self.adam and self.adam.step(optimizer)):
            optimizer.step()

    def move_targets(self, tau: float) -> None:
        """target <- (1 - tau) target + tau online, for all weights at once."""
        torch._foreach_lerp_(self.targets, self.sources, tau)


def _autocast() -> torch.dtype | None:
    """The type that products are of by autocast, if any."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def _tensors_in(owner: Any) -> Iterator[Tensor]:
    """All tensors but a module's own in what lists and the networks of this file hold, however deep."""
    if isinstance(owner, (list, tuple)):
        for each in owner:
            yield from _tensors_in(each)
    elif isinstance(owner, (Perceptrons, Product)):
        yield from _tensors_in(list(vars(owner).values()))
    elif isinstance(owner, Tensor) and not isinstance(owner, nn.Parameter):
        yield owner


def _are_trained(weights: Iterable[Any]) -> bool:
    """Whether each has a gradient, which nothing but an optimizer waits for."""
    return all(
        weight.requires_grad and not (weight._backward_hooks or weight._post_accumulate_grad_hooks)
        for weight in weights
    )


def _kind(layer: Layer, batch_size: int, rectified: bool, halved: bool) -> type[Product]:
    """How a layer's products are done."""
    members, fan_in, fan_out = layer.weight.shape
    if halved and min(fan_in, fan_out) >= WIDE:
        return HalvedProduct
    if fan_in * fan_out >= LARGE and most_awake(members, batch_size):
        return LargeProduct
    if fan_in < FEW and not layer.weight.is_contiguous():
        return FewInputs
    return FewOutputs if fan_out < FEW and not (rectified or layer.norm) else Product


def _add_and_rectify(sums: Tensor, bias: Tensor) -> Tensor:
    """Writes the ReLUs of sums and biases over the sums, in one pass."""
    rectified: Tensor = torch.ops.aten._add_relu_(sums, bias)
    return rectified


def _joined(columns: list[Tensor]) -> Tensor:
    """Numbers (n, batch, 1) of some critics after another as (N, batch)."""
    return (columns[0] if len(columns) == 1 else torch.cat(columns)).squeeze(2)


def _written_in_rows(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """The product (N, rows, columns), as that of the transposed where `out` is; else one of bfloat16 takes for ever."""
    if out.is_contiguous():
        return torch.bmm(left, right, out=out)
    return torch.bmm(right.mT, left.mT, out=out.mT).mT


def _apart(layer: Layer) -> list[Layer]:
    """N layers, each as one of its own."""
    members = len(layer.weight)
    pairs = zip(layer.weight.chunk(members), layer.bias.chunk(members), strict=True)
    return [Layer(weight, bias, layer.norm) for weight, bias in pairs]


def _hand_over(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient


def _weights(network: nn.Module) -> list[Tensor]:
    return [weight.detach() for weight in network.parameters()]

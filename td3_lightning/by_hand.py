"""The gradients of an update written out, and single actions, for plain networks in one process on a CPU.

`module.py` says what an update is, and leaves its gradients to autograd. This file comes to the same gradients with
fewer passes over memory: buffers that stay, and that the networks share, so that the cache has them, as each network is
done with before the next one begins; ReLUs in place; and no product that nobody asks for. With precision bf16-mixed the
products between wide layers are of bfloat16, and everything else is of float32. A reader may skip it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from numpy.typing import NDArray
from torch import Tensor, nn

from td3_lightning.networks import Actor, Critics, LayerNorms, Linears, ReLU
from td3_lightning.replay import Batch

if TYPE_CHECKING:
    from td3_lightning.module import TD3

EPSILON = nn.LayerNorm(1).eps  # what keeps a normalisation from dividing by 0
WIDE = 192  # inputs and outputs from which on a layer is worth the way to bfloat16 and back
PLAIN = {nn.Linear, Linears, nn.LayerNorm, LayerNorms, nn.ReLU, ReLU}  # the layers written out here


class Layer(NamedTuple):
    """The weights of a linear layer and of the normalisation after it, or their gradients."""

    weight: Tensor  # (fan_in, fan_out)
    bias: Tensor  # (fan_out,)
    norm: list[Tensor]  # gain and shift (fan_out,) of the normalisation, or nothing


Layers = list[Layer]  # the first one first


class Product:
    """A linear layer, and its gradient.

    Args:
        layer: Its weights.
        batch_size: Rows of every input.
    """

    def __init__(self, layer: Layer, batch_size: int) -> None:
        self.weight, self.bias = layer.weight, layer.bias
        self.inputs = layer.weight.new_empty(0)  # what `forward` was given last

    def with_weights(self, layer: Layer) -> Product:
        """The same for other weights of these shapes, in the same memory."""
        other = copy.copy(self)
        other.weight, other.bias = layer.weight, layer.bias
        return other

    def forward(self, inputs: Tensor, out: Tensor) -> Tensor:
        """Writes the sums (batch, fan_out) for inputs (batch, fan_in)."""
        self.inputs = inputs
        return torch.addmm(self.bias, inputs, self.weight, out=out)

    def differentiate(self, slope: Tensor, gradient: Tensor | None, below: Tensor | None) -> None:
        """Writes the gradient of the weight and the slope in the inputs, where wanted, given that in the sums."""
        if gradient is not None:
            torch.mm(self.inputs.t(), slope, out=gradient)
        if below is not None:
            torch.mm(slope, self.weight.t(), out=below)


class HalvedProduct(Product):
    """The same from float32 to float32, with products of bfloat16 between."""

    def __init__(self, layer: Layer, batch_size: int) -> None:
        super().__init__(layer, batch_size)
        fan_in, fan_out = layer.weight.shape
        self.halved = torch.empty_like(layer.weight, dtype=torch.bfloat16)
        self.inputs, self.below = self.halved.new_empty(2, batch_size, fan_in)
        self.sums, self.slope = self.halved.new_empty(2, batch_size, fan_out)
        self.gradient = torch.empty_like(self.halved)

    def forward(self, inputs: Tensor, out: Tensor) -> Tensor:
        """Writes the sums (batch, fan_out) for inputs (batch, fan_in)."""
        torch._foreach_copy_([self.inputs, self.halved], [inputs, self.weight])
        return out.copy_(torch.mm(self.inputs, self.halved, out=self.sums)).add_(self.bias)

    def differentiate(self, slope: Tensor, gradient: Tensor | None, below: Tensor | None) -> None:
        """Writes the gradient of the weight and the slope in the inputs, where wanted, given that in the sums."""
        self.slope.copy_(slope)
        if gradient is not None:
            gradient.copy_(torch.mm(self.inputs.t(), self.slope, out=self.gradient))
        if below is not None:
            below.copy_(torch.mm(self.slope, self.halved.t(), out=self.below))


class Perceptron:
    """A network of linear layers with a ReLU after all but the last, and its gradient.

    A layer may be normalised before its ReLU.

    Args:
        layers: Its weights.
        batch_size: Rows of every input.
        halved: Whether products between wide layers are of bfloat16.
    """

    def __init__(self, layers: Layers, batch_size: int, halved: bool = False) -> None:
        self.layers = layers
        self.products = [
            (HalvedProduct if halved and min(layer.weight.shape) >= WIDE else Product)(layer, batch_size)
            for layer in layers
        ]
        self.sums = [layer.bias.new_empty(batch_size, len(layer.bias)) for layer in layers]  # not normalised yet
        self.outputs = list(self.sums)  # the same tensors where nothing is normalised
        self.moments: list[list[Tensor]] = [[] for _ in layers]  # each row's, where something is
        inputs = self.sums[0].new_empty(batch_size, layers[0].weight.shape[0])
        self.slopes = [inputs, *map(torch.empty_like, self.outputs[:-1])]  # the loss's, in the inputs of each layer

    def with_weights(self, layers: Layers) -> Perceptron:
        """The same for other weights of these shapes, used after this one: it writes over what this one remembers."""
        other = copy.copy(self)
        other.layers = layers
        other.products = [product.with_weights(layer) for product, layer in zip(self.products, layers, strict=True)]
        return other

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs (batch, fan_out) of the last layer for inputs (batch, fan_in); the next call overwrites them."""
        hidden, last = inputs, len(self.layers) - 1
        for depth, layer in enumerate(self.layers):
            hidden = self.products[depth].forward(hidden, out=self.sums[depth])
            if layer.norm:
                gain, shift = layer.norm
                hidden, *self.moments[depth] = torch.native_layer_norm(hidden, gain.shape, gain, shift, EPSILON)
                self.outputs[depth] = hidden
            if depth < last:
                hidden.relu_()
        return hidden

    def differentiate(self, slope: Tensor, gradients: Layers) -> None:
        """Writes the gradients of all layers, given the loss's slope (batch, fan_out) in the outputs."""
        for depth in reversed(range(len(self.layers))):
            slope = self._slope_in_sums(depth, slope, gradients[depth])
            torch.sum(slope, 0, out=gradients[depth].bias)
            slope = self._slope_below(depth, slope, gradients[depth].weight)

    def slope_in_inputs(self, slope: Tensor, columns: int) -> Tensor:
        """The loss's slope (batch, columns) in the last columns of the inputs, given that in the outputs."""
        for depth in reversed(range(1, len(self.layers))):
            slope = self._slope_below(depth, self._slope_in_sums(depth, slope))
        wanted = self.slopes[0][:, -columns:]  # too few for bfloat16
        return torch.mm(self._slope_in_sums(0, slope), self.layers[0].weight[-columns:].t(), out=wanted)

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

    def _slope_below(self, depth: int, slope: Tensor, gradient: Tensor | None = None) -> Tensor:
        """From the slope in a layer's sums, that in the layer before it, ahead of its ReLU."""
        below = self.slopes[depth]
        self.products[depth].differentiate(slope, gradient, below if depth else None)
        if depth:
            outputs: Tensor = self.outputs[depth - 1]  # where the ReLU gave 0, its slope is 0
            torch.ops.aten.threshold_backward.grad_input(below, outputs, 0, grad_input=below)
        return below


class Unchanged:
    """The layers of networks as they are, to see within microseconds whether they still are when they are used.

    Args:
        networks: The networks, without hooks.
    """

    def __init__(self, networks: list[nn.Module]) -> None:
        self.layers = [layer for network in networks for layer in _layers_of(network)]
        self.weights: list[dict[str, Any]] = [layer._parameters for layer in self.layers]
        self.hooks = [hooks for module in (*networks, *self.layers) for hooks in _hooks(module)]
        self.places = self._places()

    def are(self, networks: list[nn.Module]) -> bool:
        """Whether these networks have those layers, still without hooks, with their weights where they were."""
        layers = [layer for network in networks for layer in _layers_of(network)]
        return layers == self.layers and self._places() == self.places and not any(self.hooks)

    def _places(self) -> list[int]:
        return [weight.data_ptr() for weights in self.weights for weight in weights.values()]


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
        self.unchanged = Unchanged(self._networks())
        # Walking through a module for its parameters takes longer than averaging them.
        self.actor_weights: list[Tensor] = list(module.actor.parameters())
        self.critic_weights: list[Tensor] = list(module.critics.parameters())
        self.online = self.actor_weights + self.critic_weights
        self.targets: list[Tensor] = [*module.actor_target.parameters(), *module.critics_target.parameters()]
        actor, actor_target = (self._actor_layers(_weights(each)) for each in (module.actor, module.actor_target))
        critics, targets = (self._critic_layers(_weights(each)) for each in (module.critics, module.critics_target))
        self.actor = Perceptron(actor, batch_size, self.autocast is not None)
        self.actor_target = self.actor.with_weights(actor_target)
        first = Perceptron(critics[0], batch_size, self.autocast is not None)
        self.critics, self.critics_target = ([first.with_weights(each) for each in nets] for nets in (critics, targets))
        self.actor_gradients, self.critic_gradients = (
            [torch.zeros_like(weight) for weight in weights] for weights in (self.actor_weights, self.critic_weights)
        )
        self._of_actor = self._actor_layers(self.actor_gradients)
        self._of_critics = self._critic_layers(self.critic_gradients)

    @staticmethod
    def suits(module: TD3, batch: Batch) -> bool:
        """Whether the networks are plain ones of one process, on a CPU, and nobody listens in."""
        plain = _is_plain(module.actor) and _is_plain(module.critics) and module.hparams["encoder"] is None
        trained = all(_is_trained(weight) for net in (module.actor, module.critics) for weight in net.parameters())
        one_process = module._trainer is None or module.trainer.world_size == 1
        on_cpu = batch.obs.device.type == "cpu" and _autocast() in (None, torch.bfloat16)
        return plain and trained and one_process and on_cpu and not _hears_of_backward_passes(module)

    def fits(self, batch: Batch) -> bool:
        """Whether the batch has the size that it was made for, and the networks are as they were, where they were."""
        same = len(batch.reward) == self.batch_size and self.autocast == _autocast()
        return same and self.unchanged.are(self._networks()) and all(map(_is_trained, self.online))

    def _networks(self) -> list[nn.Module]:
        module = self.module
        return [module.actor, module.critics, module.actor_target, module.critics_target]

    def _actor_layers(self, tensors: Sequence[Tensor]) -> Layers:
        """From the actor's parameters or their gradients; its weights are (fan_out, fan_in)."""
        return self._layers([tensor.t() for tensor in tensors])

    def _critic_layers(self, tensors: Sequence[Tensor]) -> list[Layers]:
        """Each member's, from the critics' parameters or their gradients, the members on the first axis."""
        return [self._layers(member) for member in zip(*tensors, strict=True)]

    def _layers(self, tensors: Sequence[Tensor]) -> Layers:
        each = 4 if self.module.hparams["layer_norm"] else 2
        layers = (tensors[first : first + each] for first in range(0, len(tensors), each))
        return [Layer(weight, bias.view(-1), [vector.view(-1) for vector in norm]) for weight, bias, *norm in layers]

    @torch.no_grad()
    def of_critics(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sets the critics' gradients; gives their loss and Q-values (N, batch)."""
        inputs, target = torch.cat([batch.obs, batch.action], dim=1), self._target(batch)
        q = target.new_empty(len(self.critics), self.batch_size)
        for critic, own, gradients in zip(self.critics, q, self._of_critics, strict=True):
            own.copy_(critic.forward(inputs).squeeze(1))
            critic.differentiate(((own - target) * (2 / self.batch_size)).unsqueeze(1), gradients)
        _hand_over(self.critic_weights, self.critic_gradients)
        return (q - target).square().mean(dim=1).sum(), q

    def _target(self, batch: Batch) -> Tensor:
        centre, scale = self.module.actor_target.centre, self.module.actor_target.scale
        action = centre + scale * torch.tanh(self.actor_target.forward(batch.next_obs))
        inputs = torch.cat([batch.next_obs, self.module.smoothed(action)], dim=1)
        next_q = batch.reward.new_empty(len(self.critics_target), self.batch_size)
        for critic, own in zip(self.critics_target, next_q, strict=True):
            own.copy_(critic.forward(inputs).squeeze(1))
        return batch.reward + batch.discount * next_q.amin(dim=0)

    @torch.no_grad()
    def of_actor(self, batch: Batch) -> Tensor:
        """Sets the actor's gradient; gives its loss."""
        centre, scale = self.module.actor.centre, self.module.actor.scale
        squashed = torch.tanh(self.actor.forward(batch.obs))
        inputs = torch.cat([batch.obs, centre + scale * squashed], dim=1)
        q = self.critics[0].forward(inputs)
        in_action = self.critics[0].slope_in_inputs(torch.full_like(q, -1 / self.batch_size), len(scale))
        self.actor.differentiate(in_action * scale * (1 - squashed.square()), self._of_actor)
        _hand_over(self.actor_weights, self.actor_gradients)
        return -q.mean()

    @torch.no_grad()
    def move_targets(self, tau: float) -> None:
        """target <- (1 - tau) target + tau online, for all weights at once."""
        torch._foreach_lerp_(self.targets, self.online, tau)


class SingleActions:
    """An actor's action for one observation, the same as its own but without the cost of its modules.

    Args:
        actor: Whose action it is; plain, and on a CPU.
    """

    @torch.inference_mode(mode=False)  # it may be made in an evaluation and act in training
    def __init__(self, actor: Actor) -> None:
        self.actor, self.unchanged = actor, Unchanged([actor])
        self.steps = [_step(layer) for layer in actor.layers]
        self.scale, self.centre = actor.scale.numpy(), actor.centre.numpy()
        self.obs = actor.scale.new_empty(next(actor.parameters()).shape[1])
        self.view = self.obs.numpy()

    @staticmethod
    def suits(actor: Any) -> bool:
        """Whether the actor is a plain one on a CPU, in float32, and not under autocast."""
        plain = _is_plain(actor) and type(actor.encoder) is nn.Identity
        usual = plain and actor.scale.device.type == "cpu" and actor.scale.dtype == torch.float32
        return usual and not torch.is_autocast_enabled("cpu")

    def fits(self, actor: Any) -> bool:
        """Whether that holds still, of the same actor and layers, with its weights where they were in memory."""
        still = actor is self.actor and self.unchanged.are([actor])
        return still and not torch.is_autocast_enabled("cpu")

    def __call__(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """The action (action_dim,), in the environment's units, for an observation (obs_dim,)."""
        self.view[:] = obs
        hidden = self.obs
        for step in self.steps:
            hidden = step(hidden)
        action: NDArray[np.float32] = self.centre + self.scale * hidden.tanh().numpy()
        return action


def _layers_of(network: Any) -> list[nn.Module]:
    """What `network.layers` holds, if there are any; a module takes longer to answer."""
    layers = network._modules.get("layers")
    return [] if layers is None else list(layers._modules.values())


def _is_plain(network: Any) -> bool:
    """Whether it is one of `networks.py`, and so is each of its layers, as it was made."""
    return type(network) in (Actor, Critics) and _is_unhooked([network]) and all(map(_is_usual, network.layers))


def _is_usual(layer: nn.Module) -> bool:
    whole = None not in layer._parameters.values() and getattr(layer, "eps", EPSILON) == EPSILON
    return type(layer) in PLAIN and whole and _is_unhooked([layer])


def _autocast() -> torch.dtype | None:
    """The type that products are of by autocast, if any."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def _is_unhooked(modules: Sequence[nn.Module]) -> bool:
    return not any(hooks for module in modules for hooks in _hooks(module))


def _is_trained(weight: Any) -> bool:
    """Whether it has a gradient, which nothing but an optimizer waits for."""
    return weight.requires_grad and not weight._backward_hooks and not weight._post_accumulate_grad_hooks


def _hears_of_backward_passes(module: TD3) -> bool:
    """Whether the module or a callback has something to do before or after one."""
    callbacks = [] if module._trainer is None else module.trainer.callbacks  # type: ignore[attr-defined]
    owners = [(module, L.LightningModule), *((callback, Callback) for callback in callbacks)]
    hooks = ("on_before_backward", "on_after_backward")
    return any(
        getattr(getattr(owner, hook), "__func__", None) is not getattr(kind, hook)
        for owner, kind in owners
        for hook in hooks
    )


def _hooks(module: Any) -> tuple[Any, ...]:
    """What is called when the module is, or when its gradients are worked out; filled in place later."""
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks


def _step(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """What a layer does to a vector; a ReLU overwrites it."""
    if isinstance(layer, nn.ReLU):
        return torch.relu_
    weight, bias = (parameter.detach() for parameter in layer.parameters())
    if isinstance(layer, nn.LayerNorm):
        return lambda vector: nn.functional.layer_norm(vector, weight.shape, weight, bias, EPSILON)
    output = torch.empty_like(bias)
    return lambda vector: torch.addmv(bias, weight, vector, out=output)


def _hand_over(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient


def _weights(network: nn.Module) -> list[Tensor]:
    return [weight.detach() for weight in network.parameters()]

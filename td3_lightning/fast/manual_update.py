"""Gradients of the TD3 update for plain networks, computed without autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from td3_lightning.algorithm.distributed import ranks
from td3_lightning.fast.adam import FastAdam, is_plain_step
from td3_lightning.fast.eligibility import Unchanged, has_hook, is_plain
from td3_lightning.fast.traced import TracedFunction
from td3_lightning.replay.buffer import Batch

if TYPE_CHECKING:
    from td3_lightning.algorithm.td3 import TD3
from td3_lightning.fast.mlp import BatchedMLP, Layer, Layers, LinearKernel


class ManualUpdate:
    """Puts the gradients of `TD3.critic_loss` and `TD3.actor_loss` where the optimizers look for them.

    They are autograd's but for the order of sums; under autocast they are rounded in fewer places than autograd's.

    Args:
        module: Whose networks these are.
        batch_size: Transitions in a batch.
    """

    def __init__(self, module: TD3, batch_size: int) -> None:
        self.module, self.batch_size = module, batch_size
        self.autocast = _autocast()
        self.adam = FastAdam() if is_plain_step(module) else None
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
        self.actor = BatchedMLP(actor, batch_size, self.autocast is not None)
        self.actor_target = self.actor.with_weights(actor_target)
        some = BatchedMLP(critics[0], batch_size, self.autocast is not None)
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
            self._critics_pass = TracedFunction(self._differentiate_critics, self._memory)
            self._actor_pass = TracedFunction(self._differentiate_actor, self._memory)

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
            and not has_hook(module, "on_before_backward", "on_after_backward")
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
        inputs = self._for_critics(batch.next_obs, self.module.add_target_noise(action[0], noise))
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
    elif isinstance(owner, (BatchedMLP, LinearKernel)):
        yield from _tensors_in(list(vars(owner).values()))
    elif isinstance(owner, Tensor) and not isinstance(owner, nn.Parameter):
        yield owner


def _are_trained(weights: Iterable[Any]) -> bool:
    """Whether each has a gradient, which nothing but an optimizer waits for."""
    return all(
        weight.requires_grad and not (weight._backward_hooks or weight._post_accumulate_grad_hooks)
        for weight in weights
    )


def _joined(columns: list[Tensor]) -> Tensor:
    """Numbers (n, batch, 1) of some critics after another as (N, batch)."""
    return (columns[0] if len(columns) == 1 else torch.cat(columns)).squeeze(2)


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

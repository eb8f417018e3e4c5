"""Update of TD3 with gradients computed without autograd, for plain networks in one process on a CPU.

The gradients are autograd's up to the order of floating-point sums; under autocast they are rounded in fewer places.
It is faster because buffers are reused while they are in the cache, ReLUs are applied in place, and unneeded products
are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, cast

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from td3_lightning.algorithm.distributed import world_size
from td3_lightning.algorithm.learner import ACTOR, CRITICS
from td3_lightning.algorithm.losses import huber
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.fast import autograd_update
from td3_lightning.fast.adam import FastAdam, supports_fast_step
from td3_lightning.fast.autograd_update import AutogradUpdate
from td3_lightning.fast.eligibility import has_plain_backward, is_plain
from td3_lightning.fast.mlp import BatchedMLP, Layer, Layers
from td3_lightning.fast.replaced_code import runs_replaced_losses, runs_replaced_steps
from td3_lightning.replay.batch import Batch


def make_rule(module: TD3) -> ManualUpdate | AutogradUpdate | None:
    """Return a manual update for a module that supports it, else autograd, or None for the module's own update."""
    return ManualUpdate(module) if supports(module) else autograd_update.make_rule(module)


def supports(module: TD3) -> bool:
    """Return whether networks, losses and hooks are TD3's own, in one process on a CPU.

    Every precision is supported except 16-mixed, which scales the gradients.
    """
    trained = module.actor, module.critics
    return (
        all(is_plain(network, module.settings) for network in (*trained, module.actor_target, module.critics_target))
        and module.actor.scale.device.type == "cpu"
        and _autocast_dtype() in (None, torch.bfloat16)
        and torch.get_float32_matmul_precision() == "highest"
        and module.settings.bc_weight is None
        and module.settings.critic_loss in ("mse", "huber")
        and world_size() == 1
        and not torch.is_anomaly_enabled()  # it examines the graph of autograd
        and all(_are_trained(network.parameters()) for network in trained)
        and has_plain_backward(module)
        and runs_replaced_steps(module)
        and runs_replaced_losses(module)
    )


class ManualUpdate:
    """Update rule with the gradients of `GradientPasses`, and the steps of `FastAdam` if it supports the optimizer.

    Args:
        module: A module that `supports` accepts; its trained networks are not replaced while the rule is used.
    """

    def __init__(self, module: TD3) -> None:
        self.module = module
        self.critic_parameters: list[Tensor] = list(module.critics.parameters())
        self.actor_parameters: list[Tensor] = list(module.actor.parameters())
        self.networks: tuple[nn.Module, ...] = ()
        self.weights: list[Tensor] = []  # of the networks
        self.passes: GradientPasses | None = None
        self.places: tuple[int, ...] = ()  # size of the batch of the passes, and addresses of the weights
        optimizers = cast(list[LightningOptimizer], module.optimizers())
        self.actor_optimizer, self.critic_optimizer = optimizers[ACTOR], optimizers[CRITICS]
        self.actor_step, self.critic_step = (
            FastAdam(optimizer).step if supports_fast_step(module, optimizer) else optimizer.step
            for optimizer in (self.actor_optimizer, self.critic_optimizer)
        )

    def update_critics(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Take a step of the critics; return the loss and the Q-values (N, batch) before the step."""
        passes, noise = self._passes(batch), self.module.draw_target_noise(batch.action)
        with torch.no_grad():
            loss, q = passes.critics(batch, noise)
        _set_gradients(self.critic_parameters, passes.critic_gradients)
        self.module.prepare_step(self.critic_optimizer, self.module.settings.critic_lr)
        self.critic_step()
        return loss, q

    def update_actor(self, batch: Batch) -> Tensor:
        """Take a step of the actor; return the loss before the step."""
        passes = self._passes(batch)
        with torch.no_grad():
            loss = passes.actor(batch)
        _set_gradients(self.actor_parameters, passes.actor_gradients)
        self.module.prepare_step(self.actor_optimizer, self.module.settings.actor_lr)
        self.actor_step()
        return loss

    def _passes(self, batch: Batch) -> GradientPasses:
        """Return the passes for the size of a batch, made again after `weight.data = ...` or a new target network."""
        module = self.module
        networks = module.actor, module.actor_target, module.critics, module.critics_target
        if networks != self.networks:
            self.networks, self.weights = networks, [weight for each in networks for weight in each.parameters()]
        places = len(batch.reward), *map(Tensor.data_ptr, self.weights)
        if self.passes is None or self.places != places:
            self.passes, self.places = GradientPasses(module, len(batch.reward)), places
        return self.passes


class GradientPasses:
    """Forward and backward passes that write the gradients of both losses into buffers, for batches of one size."""

    def __init__(self, module: TD3, batch_size: int) -> None:
        self.module, self.batch_size = module, batch_size
        self.layer_norm, self.huber = module.settings.layer_norm, module.settings.critic_loss == "huber"
        self.actor_gradients = [torch.zeros_like(weight) for weight in module.actor.parameters()]
        self.critic_gradients = [torch.zeros_like(weight) for weight in module.critics.parameters()]
        critics, threads = module.critics.num_critics, torch.get_num_threads()
        divides_evenly = threads > 1 and critics % threads == 0  # then each thread finds its critics in its cache
        self.critics_per_matmul = critics if divides_evenly and not self.layer_norm else 1
        self._actor_gradient_layers = self._actor_layers(self.actor_gradients)
        self._critic_gradient_layers = self._critic_layers(self.critic_gradients)
        self._make_networks(bf16=_autocast_dtype() is not None)

    def _make_networks(self, bf16: bool) -> None:
        """Wrap the parameters; all networks of a kind share buffers, because they are used one after the other."""
        module = self.module
        actor, actor_target = (self._actor_layers(_detached(each)) for each in (module.actor, module.actor_target))
        critics, targets = (self._critic_layers(_detached(each)) for each in (module.critics, module.critics_target))
        self.actor_network = BatchedMLP(actor, self.batch_size, bf16)
        self.actor_target = self.actor_network.with_weights(actor_target)
        buffers = BatchedMLP(critics[0], self.batch_size, bf16)
        self.critic_networks = [buffers.with_weights(layers) for layers in critics]
        self.critic_targets = [buffers.with_weights(layers) for layers in targets]
        first = [Layer(layer.weight[:1], layer.bias[:1], layer.norm) for layer in critics[0]]
        self.first_critic = buffers.with_weights(first)

    def _actor_layers(self, tensors: Sequence[Tensor]) -> Layers:
        """Group the actor's parameters or gradients by layer; its weights are (fan_out, fan_in)."""
        return self._layers([tensor.t().unsqueeze(0) for tensor in tensors])

    def _critic_layers(self, tensors: Sequence[Tensor]) -> list[Layers]:
        """Group the critics' parameters or gradients by product and layer."""
        parts = self.module.critics.num_critics // self.critics_per_matmul
        return [self._layers(some) for some in zip(*(tensor.chunk(parts) for tensor in tensors), strict=True)]

    def _layers(self, tensors: Sequence[Tensor]) -> Layers:
        each = 4 if self.layer_norm else 2
        layers = (tensors[first : first + each] for first in range(0, len(tensors), each))
        return [
            Layer(weight, bias.view(len(weight), 1, -1), [vector.view(-1) for vector in norm])
            for weight, bias, *norm in layers
        ]

    def critics(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Write the critics' gradients for a batch and its noise; return their loss and Q-values (N, batch)."""
        target, values, errors = self._td_target(batch, noise), [], []
        inputs = self._critic_inputs(batch.obs, batch.action)
        for critics, gradients in zip(self.critic_networks, self._critic_gradient_layers, strict=True):
            q = critics.forward(inputs)
            error = q - target
            values.append(q.clone())
            errors.append(error)
            slope = error.clamp(-1, 1) / self.batch_size if self.huber else error * (2 / self.batch_size)
            critics.backward(slope, gradients)
        return self._loss(_concatenate(errors)), _concatenate(values)

    def _loss(self, error: Tensor) -> Tensor:
        """Return the critics' loss for TD errors (N, batch), and store what priorities need."""
        if self.huber:
            loss, self.module._td_error = huber(error)
            return loss
        flat = error.reshape(-1)
        return flat.dot(flat) / self.batch_size

    def _td_target(self, batch: Batch, noise: Tensor) -> Tensor:
        """Compute `TD3.td_target`, (batch, 1), with noise (batch, action_dim)."""
        actor = self.module.actor_target
        action = actor.centre + actor.scale * torch.tanh(self.actor_target.forward(batch.next_obs.unsqueeze(0)))
        inputs = self._critic_inputs(batch.next_obs, self.module.smooth_target_action(action[0], noise))
        next_q = reduce(torch.minimum, [critics.forward(inputs).amin(dim=0) for critics in self.critic_targets])
        return batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * next_q

    def _critic_inputs(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return inputs (critics_per_matmul, batch, obs_dim + action_dim), the same for each critic."""
        return torch.cat([obs, action], dim=1).expand(self.critics_per_matmul, -1, -1)

    def actor(self, batch: Batch) -> Tensor:
        """Write the actor's gradient for a batch; return its loss."""
        actor, obs = self.module.actor, batch.obs.unsqueeze(0)
        squashed = torch.tanh(self.actor_network.forward(obs))
        q = self.first_critic.forward(torch.cat([obs, actor.centre + actor.scale * squashed], dim=2))
        grad_q = torch.full_like(q, -1 / self.batch_size)
        grad_action = self.first_critic.grad_input(grad_q, len(actor.scale))
        self.actor_network.backward(grad_action * actor.scale * (1 - squashed.square()), self._actor_gradient_layers)
        return -q.mean()


def _autocast_dtype() -> torch.dtype | None:
    """Return the dtype of products under autocast on the CPU, None without autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def _are_trained(parameters: Iterable[Any]) -> bool:
    """Return whether all parameters require gradients and have no gradient hooks."""
    return all(
        parameter.requires_grad and not (parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
        for parameter in parameters
    )


def _concatenate(columns: list[Tensor]) -> Tensor:
    """Concatenate columns (n, batch, 1) of several products to (N, batch)."""
    return (columns[0] if len(columns) == 1 else torch.cat(columns)).squeeze(2)


def _set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def _detached(network: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in network.parameters()]

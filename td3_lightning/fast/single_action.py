"""The action for one observation, worked out on the host, for a plain actor. A reader may skip this file.

A network for one observation is quicker there than the calls that would start it on a GPU. While a GPU learns, its
weights come over when an action is wanted after the actor's update. Between two such updates nothing waits for the
GPU: it works on the critics while the environment steps.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from td3_lightning.algorithm.networks import Actor
from td3_lightning.fast.eligibility import EPSILON, Unchanged, is_plain

Updates = Callable[[], int | None]  # how many there have been; None if nobody counts them


class SingleObservationPolicy:
    """An actor's action for one observation, the same as its own but without the cost of its modules.

    Args:
        actor: Whose action it is; it suits.
        updates: Gives how often the actor has been updated.
    """

    @torch.inference_mode(mode=False)  # it may be made in an evaluation and act in training
    def __init__(self, actor: Actor, updates: Updates) -> None:
        self.actor, self.unchanged, self.device = actor, Unchanged([actor]), actor.scale.device.type
        self.updates = updates
        self.copy = None if _is_on_host(actor) else CpuMirror(actor)
        here = self.copy.network if self.copy else actor
        self.steps = [_step(layer) for layer in here.layers]
        self.scale, self.centre = here.scale.numpy(), here.centre.numpy()
        self.obs = here.scale.new_empty(next(here.parameters()).shape[1])
        self.view = self.obs.numpy()

    @staticmethod
    def suits(actor: Any, updates: Updates) -> bool:
        """Whether the actor is a plain one in float32, and not under autocast; elsewhere one whose updates count."""
        plain = is_plain(actor) and type(actor.encoder) is nn.Identity
        usual = plain and actor.scale.dtype == torch.float32 and (_is_on_host(actor) or updates() is not None)
        return usual and not torch.is_autocast_enabled(actor.scale.device.type)

    def fits(self, actor: Any) -> bool:
        """Whether that holds still, of the same actor and layers, with its weights where they were in memory."""
        still = actor is self.actor and self.unchanged.are([actor])
        followed = self.copy is None or self.updates() is not None
        return still and followed and not torch.is_autocast_enabled(self.device)

    def __call__(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """The action (action_dim,), in the environment's units, for an observation (obs_dim,)."""
        if self.copy:
            self.copy.follow(self.updates())
        self.view[:] = obs
        hidden = self.obs
        for step in self.steps:
            hidden = step(hidden)
        action: NDArray[np.float32] = self.centre + self.scale * hidden.tanh().numpy()
        return action


class CpuMirror:
    """A network in the host's memory that follows one on another device, of the same numbers to the bit.

    It has to hear of updates: of a fused Adam's step and of what is written through its `data` a tensor knows nothing.

    Args:
        network: The one to follow, of float32 throughout.
    """

    def __init__(self, network: Actor) -> None:
        self.network = copy.deepcopy(network).cpu().requires_grad_(False)
        self.there = _tensors(network)
        sizes = [tensor.numel() for tensor in self.there]
        self.numbers = torch.empty(sum(sizes), pin_memory=self.there[0].is_cuda)  # all of the copy's
        for own, numbers in zip(_tensors(self.network), torch.split(self.numbers, sizes), strict=True):
            own.data = numbers.view(own.shape)
        self.versions: list[int | None] = []

    @torch.no_grad()
    def follow(self, updates: int | None) -> None:
        """Fetches all numbers in one piece if they have changed, for which it waits for the device."""
        versions = [updates, *(tensor._version for tensor in self.there)]
        if versions != self.versions:
            self.numbers.copy_(torch.cat([tensor.flatten() for tensor in self.there]))
            self.versions = versions


def _step(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """What a layer does to a vector; a ReLU overwrites it."""
    if isinstance(layer, nn.ReLU):
        return torch.relu_
    weight, bias = (parameter.detach() for parameter in layer.parameters())
    if isinstance(layer, nn.LayerNorm):
        return lambda vector: nn.functional.layer_norm(vector, weight.shape, weight, bias, EPSILON)
    output = torch.empty_like(bias)
    return lambda vector: torch.addmv(bias, weight, vector, out=output)


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def _is_on_host(actor: Any) -> bool:
    return bool(actor.scale.device.type == "cpu")

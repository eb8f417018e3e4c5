"""Update of TD3 whose losses are compiled by torch.compile, with CUDA graphs on a GPU.

Experimental: it is tested on a CPU, where it is not faster, and has no benchmarks on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from td3_lightning.algorithm.networks import Critics
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.fast.eligibility import overrides
from td3_lightning.replay.batch import Batch
from td3_lightning.schedules import varies


def make_rule(module: TD3, previous: object) -> CompiledUpdate | None:
    """Return the rule of a module; the previous one, with its compiled losses, if it is for the same device.

    Warn and return None if the module overrides a method that this rule replaces, or if its critics are changed.
    """
    overridden = [name for name in ("update_critics", "update_actor") if overrides(module, TD3, name)]
    reason = f"{type(module).__name__} overrides {' and '.join(overridden)}" if overridden else ""
    if isinstance(module.critics, Critics) and not module.critics.is_separable():
        reason = "the critics have a layer, a hook or a forward that is not this package's"
    if reason:
        rank_zero_warn(f"model.gradients compiled has no effect, because {reason}. Use autograd.")
        return None
    if isinstance(previous, CompiledUpdate) and previous.module is module and previous.device == module.device:
        return previous
    return CompiledUpdate(module)


class CompiledUpdate:
    """Update rule with compiled losses and autograd.

    Args:
        module: The module whose losses are compiled.
    """

    def __init__(self, module: TD3) -> None:
        self.module, self.device = module, module.device
        mode = "reduce-overhead" if module.device.type == "cuda" else None
        self.critic_loss = torch.compile(module.critic_loss, mode=mode)
        self.actor_loss = module.actor_loss
        if not varies(module.settings.bc_weight):  # torch.compile compiles again for each value of a number
            self.actor_loss = torch.compile(module.actor_loss, mode=mode)
        self.noise: Tensor | None = None

    def update_critics(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Take a step of the critics; return the loss and the Q-values (N, batch) before the step."""
        noise = self._at_fixed_address(self.module.draw_target_noise(batch.action))
        loss, q = self.critic_loss(batch, noise)
        self.module.compute_gradients(loss, self.module.critics)
        self.module.step_critics()
        self.module.critics.zero_grad()  # the gradients are in memory that a CUDA graph reuses
        # A CUDA graph overwrites its earlier outputs.
        self.module._td_error = {name: error.clone() for name, error in self.module._td_error.items()}
        return loss.detach().clone(), q.detach()

    def update_actor(self, batch: Batch) -> Tensor:
        """Take a step of the actor; return the loss before the step."""
        with _frozen(self.module.critics):
            loss: Tensor = self.actor_loss(batch)
        self.module.compute_gradients(loss, self.module.actor)
        self.module.step_actor()
        self.module.actor.zero_grad()
        return loss.detach().clone()

    def update_targets(self) -> None:
        """Take the Polyak averages of the module."""
        self.module.update_targets()

    def _at_fixed_address(self, noise: Tensor) -> Tensor:
        """Copy the noise to where a CUDA graph reads it."""
        if self.noise is None or (self.noise.shape, self.noise.device) != (noise.shape, noise.device):
            self.noise = torch.empty_like(noise)
        return self.noise.copy_(noise)


@contextmanager
def _frozen(network: nn.Module) -> Iterator[None]:
    """Keep a compiled loss from computing gradients of a network."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)

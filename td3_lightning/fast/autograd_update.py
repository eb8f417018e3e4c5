"""Autograd update that skips Lightning's hooks around each backward pass and Adam step if none is implemented."""

from __future__ import annotations

from typing import cast

from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.profilers import PassThroughProfiler
from torch import Tensor, nn

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.fast.adam import FastAdam, supports_fast_step
from td3_lightning.fast.eligibility import has_hook, has_trainer, is_plain_trainer, overrides
from td3_lightning.replay.batch import Batch
from td3_lightning.schedules import Schedule

# Methods that this file replaces: a subclass that overrides one of them keeps it. Losses and targets are the module's.
REPLACED_METHODS = (
    *("update_critics", "update_actor", "compute_gradients", "step_critics", "step_actor", "step_optimizer"),
    *("optimizers", "manual_backward", "backward"),
)


def make_rule(module: TD3, previous: object = None) -> AutogradUpdate | None:
    """Return a new rule for a module that supports it, else None. Call it once per epoch."""
    return AutogradUpdate(module) if supports(module) else None


def supports(module: TD3) -> bool:
    """Return whether a Trainer runs one process on a CPU, and nothing hooks into backward passes."""
    if not has_trainer(module) or overrides(module, TD3, *REPLACED_METHODS):
        return False
    trainer = module.trainer
    return (
        is_plain_trainer(trainer)
        and isinstance(trainer.profiler, PassThroughProfiler)  # type: ignore[attr-defined]
        and module.device.type == "cpu"
        and not has_hook(module, "on_before_backward", "on_after_backward")
    )


class AutogradUpdate:
    """Update rule with the losses and the gradients of the module, bit for bit.

    Args:
        module: A module that `supports` accepts.
    """

    def __init__(self, module: TD3) -> None:
        self.module = module
        actor, critics = cast(list[LightningOptimizer], module.optimizers())[:2]
        self.step_actor = GradientStep(module, module.actor, actor, module.settings.actor_lr)
        self.step_critics = GradientStep(module, module.critics, critics, module.settings.critic_lr)
        self.update_targets = module.update_targets

    def update_critics(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Take a step of the critics; return the loss and the Q-values (N, batch) before the step."""
        loss, q = self.module.critic_loss(batch, self.module.draw_target_noise(batch.action))
        self.step_critics(loss)
        return loss.detach(), q.detach()

    def update_actor(self, batch: Batch) -> Tensor:
        """Take a step of the actor; return the loss before the step."""
        loss = self.module.actor_loss(batch)
        self.step_actor(loss)
        return loss.detach()


class GradientStep:
    """Backward pass and optimizer step of one network, whose parameters and hooks are looked up once per epoch.

    Args:
        module: The agent.
        network: The network whose parameters get gradients.
        optimizer: Optimizer of the network.
        lr: Its learning rate.
    """

    def __init__(self, module: TD3, network: nn.Module, optimizer: LightningOptimizer, lr: Schedule) -> None:
        self.module, self.optimizer, self.lr = module, optimizer, lr
        self.parameters = list(network.parameters())
        self.trained: list[Tensor] = [parameter for parameter in self.parameters if parameter.requires_grad]
        is_plain = len(self.trained) == len(self.parameters) and supports_fast_step(module, optimizer)
        self.adam = FastAdam(optimizer) if is_plain else None

    def __call__(self, loss: Tensor) -> None:
        """Take an optimizer step along the gradient of a loss."""
        self.backward(loss)
        self.module.prepare_step(self.optimizer, self.lr)
        if self.adam is None or any(parameter.grad is None for parameter in self.parameters):
            self.optimizer.step()
        else:
            self.adam.step()

    def backward(self, loss: Tensor) -> None:
        """Replace the gradients of the network's parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward(inputs=self.trained)  # type: ignore[no-untyped-call]

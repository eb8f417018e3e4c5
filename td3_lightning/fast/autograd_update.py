"""Autograd update that skips Lightning's hooks around each backward pass and Adam step if none is implemented."""

from __future__ import annotations

from typing import cast

from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.profilers import PassThroughProfiler
from torch import Tensor, nn

from td3_lightning.algorithm.learner import ACTOR, CRITICS
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.fast.adam import FastAdam, supports_fast_step
from td3_lightning.fast.eligibility import has_plain_backward, has_trainer, is_plain_trainer
from td3_lightning.fast.replaced_code import runs_replaced_steps
from td3_lightning.replay.batch import Batch
from td3_lightning.schedules import Schedule


def make_rule(module: TD3) -> AutogradUpdate | None:
    """Return a new rule for a module that supports it, else None. Call it once per epoch."""
    return AutogradUpdate(module) if supports(module) else None


def supports(module: TD3) -> bool:
    """Return whether a Trainer runs one process on a CPU, and nothing hooks into backward passes."""
    return (
        has_trainer(module)
        and is_plain_trainer(module.trainer)
        and isinstance(module.trainer.profiler, PassThroughProfiler)  # type: ignore[attr-defined]
        and module.device.type == "cpu"
        and has_plain_backward(module)
        and runs_replaced_steps(module)
    )


class AutogradUpdate:
    """Update rule with the losses and the gradients of a module that `supports` accepts, bit for bit."""

    def __init__(self, module: TD3) -> None:
        self.module = module
        optimizers, settings = cast(list[LightningOptimizer], module.optimizers()), module.settings
        self.step_actor = GradientStep(module, module.actor, optimizers[ACTOR], settings.actor_lr)
        self.step_critics = GradientStep(module, module.critics, optimizers[CRITICS], settings.critic_lr)

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
    """Backward pass and optimizer step of one network, whose parameters and hooks are looked up once per epoch."""

    def __init__(self, module: TD3, network: nn.Module, optimizer: LightningOptimizer, lr: Schedule) -> None:
        self.module, self.optimizer, self.lr = module, optimizer, lr
        self.parameters = list(network.parameters())
        self.trained: list[Tensor] = [parameter for parameter in self.parameters if parameter.requires_grad]
        is_plain = len(self.trained) == len(self.parameters) and supports_fast_step(module, optimizer)
        self.adam = FastAdam(optimizer) if is_plain else None

    def __call__(self, loss: Tensor) -> None:
        """Take an optimizer step along the gradient of a loss."""
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward(inputs=self.trained)  # type: ignore[no-untyped-call]
        self.module.prepare_step(self.optimizer, self.lr)
        if self.adam is None or any(parameter.grad is None for parameter in self.parameters):
            self.optimizer.step()
        else:
            self.adam.step()

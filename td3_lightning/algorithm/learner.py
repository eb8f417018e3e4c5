"""Optimization of an agent's networks: gradients, Adam, learning rates and clipping."""

import copy
import platform
from typing import Any, cast

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from td3_lightning.algorithm.agent import Agent
from td3_lightning.algorithm.distributed import average_gradients
from td3_lightning.algorithm.normalization import RunningNormalizer
from td3_lightning.algorithm.settings import TD3Settings
from td3_lightning.errors import UsageError, refuse, shown
from td3_lightning.schedules import Schedule

ACTOR, CRITICS = 0, 1  # places in `configure_optimizers`


class Learner(Agent):
    """Base class of agents with an actor, critics and their targets. Each network has its own Adam.

    A subclass defines `build_networks`.

    Args:
        settings: Validated settings, which are saved as hyperparameters.
    """

    settings: TD3Settings
    algorithm = "TD3"  # name of the agent in a checkpoint, which a subclass of the user keeps

    def __init__(self, settings: TD3Settings) -> None:
        super().__init__(settings.obs_dim, settings.action_box())
        self.save_hyperparameters(settings.hyperparameters())
        self.settings = settings
        self.normalizer = RunningNormalizer(settings.obs_dim) if settings.normalize_observations else nn.Identity()
        self.actor, self.critics = self.build_networks()
        self.actor_target = copy.deepcopy(self.actor).requires_grad_(False)
        self.critics_target = copy.deepcopy(self.critics).requires_grad_(False)
        self._td_error: dict[str, Tensor] = {}  # of the last batch, if the critic loss returns it

    def build_networks(self) -> tuple[Any, Any]:
        """Build the actor and the critics with fresh parameters."""
        raise NotImplementedError

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the name of the agent, the policy's types of layers, and the class's name if it changes the policy."""
        super().on_save_checkpoint(checkpoint)
        checkpoint |= {"algorithm": self.algorithm, "policy_layers": self._policy_layers()}
        kind = type(self)
        own = next(base for base in kind.__mro__ if base.__module__.split(".")[0] == __name__.split(".")[0])
        if any(getattr(kind, name) is not getattr(own, name) for name in ("build_networks", "forward", "act")):
            checkpoint["policy_class"] = kind.__name__

    def check_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise `UsageError` for the checkpoint of another agent, of a subclass, or of other action bounds."""
        held, owner = checkpoint.get("algorithm", "TD3"), checkpoint.get("policy_class")
        if held != self.algorithm:
            raise UsageError(f"The checkpoint must be of {self.algorithm}, got one of {shown(held)}. Use its class.")
        if owner is not None and owner not in [base.__name__ for base in type(self).__mro__]:
            raise UsageError(
                f"The checkpoint of a {owner} must be loaded by that class, which changes the policy, got "
                f"{type(self).__name__}. Use {owner}.load_from_checkpoint, or a Trainer with {owner}."
            )
        own = self._policy_layers()
        layers = checkpoint.get("policy_layers", own)
        if layers != own and not (isinstance(layers, list) and len(layers) != len(own)):  # another depth loads nothing
            fix = "Load it with the class that replaced layers, or replace them before."
            raise refuse("The checkpoint's policy", f"of the layers {', '.join(own)}", layers, fix)
        super().check_checkpoint(checkpoint)

    def _policy_layers(self) -> list[str]:
        """Return the types of all layers of the policy after the normalizer, which a setting may remove."""
        return [type(layer).__name__ for module in self.policy_modules()[1:] for layer in module.modules()]

    def compute_gradients(self, loss: Tensor, network: nn.Module) -> None:
        """Compute the loss's gradients in the network's own parameters only, averaged over all processes."""
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        network.zero_grad()
        self.manual_backward(loss, inputs=parameters)
        average_gradients(parameters)

    def configure_optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """Create Adam for the actor and Adam for the critics."""
        settings = self.settings
        return self.new_adam(self.actor, settings.actor_lr), self.new_adam(self.critics, settings.critic_lr)

    def new_adam(self, network: nn.Module, lr: Schedule) -> torch.optim.Optimizer:
        """Create Adam for a network, with the learning rate at `env_steps`."""
        return torch.optim.Adam(network.parameters(), lr=lr(self.env_steps), fused=True)

    def on_fit_start(self) -> None:
        """Raise `UsageError` if the device lacks float64, or if the precision makes steps or gradients wrong."""
        trainer: Any = self.trainer
        if trainer.strategy.root_device.type == "mps":
            raise UsageError("trainer.accelerator must support float64, got mps. Use cpu.")
        if trainer.precision in ("16-true", "bf16-true"):  # eps is 0, or most steps round to zero
            fix = "Use bf16-mixed or 32-true."
            raise refuse("trainer.precision", "precise enough for the steps of Adam", trainer.precision, fix)
        if trainer.precision == "bf16-mixed" and trainer.strategy.root_device.type == "cpu" and emulates_bfloat16():
            rank_zero_warn(
                "This CPU has neither AVX512-BF16 nor AMX, and emulates bfloat16 slowly. Use trainer.precision 32-true."
            )
        if self.settings.max_grad_norm is not None and trainer.precision == "16-mixed":
            raise UsageError(
                "model.max_grad_norm requires unscaled gradients, got precision 16-mixed, which scales them. Use "
                "bf16-mixed or omit max_grad_norm."
            )

    def check_optimizers(self) -> None:
        """Check the optimizers of a subclass, because each update steps those of the actor and the critics by place.

        Raises:
            UsageError: There is none for the actor or the critics in its place, or its state has other shapes than the
                weights.
        """
        for optimizer in self.trainer.optimizers:
            for weight, state in optimizer.state.items():
                shapes = {value.shape for value in state.values() if isinstance(value, Tensor) and value.ndim}
                if shapes - {weight.shape}:  # torch checks no shape, and fused Adam writes beyond the smaller tensor
                    fix = "Use a checkpoint that a run has saved."
                    raise refuse("The optimizer's state", f"of shape {tuple(weight.shape)}", shapes, fix)
        networks = (ACTOR, self.actor, self.settings.actor_lr), (CRITICS, self.critics, self.settings.critic_lr)
        for place, network, lr in networks:
            groups = [group for each in self.trainer.optimizers[place : place + 1] for group in each.param_groups]
            other = [group["lr"] for group in groups if self.is_new and group["lr"] != lr(0)]
            if other or self.trainer.lr_scheduler_configs:
                rank_zero_warn(
                    "Each update sets the learning rates of model.actor_lr and model.critic_lr, and replaces those of "
                    f"configure_optimizers ({other or 'a scheduler'}). Use these settings, for example with Linear."
                )
            if set(network.parameters()).isdisjoint(weight for group in groups for weight in group["params"]):
                raise UsageError(
                    "configure_optimizers must return the optimizer of the actor, then that of the critics, got "
                    "another order or number. Use (actor_optimizer, critic_optimizer)."
                )

    def prepare_step(self, optimizer: LightningOptimizer, lr: Schedule) -> None:
        """Set the learning rate and clip the gradients."""
        rate = self.scheduled(lr)
        for group in optimizer.param_groups:
            group["lr"] = rate
        if (norm := self.settings.max_grad_norm) is not None:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            nn.utils.clip_grad_norm_(weights, norm)

    def step_optimizer(self, index: int, lr: Schedule) -> None:
        """Take a step of one of the optimizers of `configure_optimizers`."""
        optimizer = cast(list[LightningOptimizer], self.optimizers())[index]
        self.prepare_step(optimizer, lr)
        optimizer.step()


def emulates_bfloat16() -> bool:
    """Return whether this CPU is an x86 without products of bfloat16 numbers. AMX CPUs have AVX512-BF16 as well."""
    return platform.machine() in ("x86_64", "AMD64") and not torch.cpu._is_avx512_bf16_supported()

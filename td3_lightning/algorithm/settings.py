"""Settings of TD3: validation, and their form in a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from td3_lightning.algorithm.encoders import as_encoder
from td3_lightning.algorithm.exploration import MAX_NOISE
from td3_lightning.algorithm.losses import CriticLoss
from td3_lightning.errors import (
    UsageError,
    require_bool,
    require_choice,
    require_float,
    require_floats,
    require_int,
    require_ints,
)
from td3_lightning.schedules import Constant, as_schedule
from td3_lightning.serialization.primitives import to_primitives

Settings = TypeVar("Settings", bound="TD3Settings")


@dataclass
class TD3Settings:
    """Validated settings of TD3; `TD3` documents each of them.

    Raises:
        UsageError: A setting is out of its range.
    """

    obs_dim: int
    action_low: list[float]
    action_high: list[float]
    hidden_dims: list[int]
    num_critics: int
    actor_lr: Any
    critic_lr: Any
    tau: float
    policy_noise: float
    noise_clip: float
    policy_freq: int
    max_grad_norm: float | None
    target_update_freq: int | None
    critic_loss: CriticLoss
    normalize_observations: bool
    bc_weight: float | None
    layer_norm: bool = False
    encoder: Any = None

    @classmethod
    def of(cls: type[Settings], arguments: Mapping[str, Any]) -> Settings:
        """Create the settings from the arguments of an agent's constructor."""
        return cls(**{field.name: arguments[field.name] for field in fields(cls) if field.name in arguments})

    def __post_init__(self) -> None:
        self.obs_dim = require_int("obs_dim", self.obs_dim, least=1)
        self.action_low = require_floats("action_low", self.action_low)
        self.action_high = require_floats("action_high", self.action_high)
        low, high = torch.tensor(self.action_low), torch.tensor(self.action_high)  # also the width is finite in float32
        if len(low) != len(high) or not len(low) or not (low < high).all() or not (high - low).isfinite().all():
            raise UsageError(
                f"action_low and action_high must be a finite box, got {self.action_low} and {self.action_high}. Use "
                "the bounds of the environment's action_space; bound it with "
                "td3_lightning.SymmetricActionBounds in data.wrappers, for example."
            )
        self.hidden_dims = require_ints("hidden_dims", self.hidden_dims, 1)
        self.num_critics = require_int("num_critics", self.num_critics, least=1)
        self.layer_norm = require_bool("layer_norm", self.layer_norm)
        self.encoder = as_encoder("encoder", self.encoder)
        self.normalize_observations = require_bool("normalize_observations", self.normalize_observations)
        self._check_update()

    def _check_update(self) -> None:
        self.actor_lr = as_schedule("actor_lr", self.actor_lr, least=0)
        self.critic_lr = as_schedule("critic_lr", self.critic_lr, least=0)
        self.tau = require_float("tau", self.tau, most=1, above=0, fix="The paper uses 0.005.")
        for name, paper in (("policy_noise", 0.2), ("noise_clip", 0.5)):
            noise = require_float(name, getattr(self, name), least=0, most=MAX_NOISE, fix=f"The paper uses {paper}.")
            setattr(self, name, noise)
        self.policy_freq = require_int("policy_freq", self.policy_freq, least=1, fix="The paper uses 2.")
        if self.target_update_freq is not None:
            fix = "Use 250, for example."
            self.target_update_freq = require_int("target_update_freq", self.target_update_freq, least=1, fix=fix)
        if self.max_grad_norm is not None:
            fix = "Omit max_grad_norm for no clipping."
            self.max_grad_norm = require_float("max_grad_norm", self.max_grad_norm, above=0, fix=fix)
        if self.bc_weight is not None:
            fix = "Use 0.4 for TD3+BC, 0.1 for TD7, or omit it for online training."
            self.bc_weight = require_float("bc_weight", self.bc_weight, above=0, fix=fix)
        require_choice("critic_loss", self.critic_loss, get_args(CriticLoss))

    @property
    def shares_encoder(self) -> bool:
        """Whether the actor receives the critics' features."""
        return self.encoder is not None and self.encoder.shared

    def hyperparameters(self) -> dict[str, Any]:
        """Return the settings as plain Python values, as a checkpoint holds them."""
        values = dict(vars(self))
        for name, value in values.items():
            if isinstance(value, Constant):
                values[name] = value.value
            elif hasattr(value, "plain"):  # an encoder or another schedule
                values[name] = value.plain()
        plain: dict[str, Any] = to_primitives(values, "model")
        return plain

    def action_box(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the smallest and largest actions (action_dim,), as float32 inside the box of float64 bounds."""
        low, high = np.array(self.action_low, np.float64), np.array(self.action_high, np.float64)
        return _round_up(low), -_round_up(-high)


@dataclass
class TD7Settings(TD3Settings):
    """Validated settings of TD7; `TD7` documents each of them."""

    zs_dim: int = 256
    encoder_lr: Any = 3e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.zs_dim = require_int("zs_dim", self.zs_dim, least=1, fix="The paper uses 256.")
        self.encoder_lr = as_schedule("encoder_lr", self.encoder_lr, least=0)


def _round_up(bounds: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the smallest float32 values that are not below the bounds."""
    nearest = bounds.astype(np.float32)
    return np.where(nearest < bounds, np.nextafter(nearest, np.float32(np.inf)), nearest)

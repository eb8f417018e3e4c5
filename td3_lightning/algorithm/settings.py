"""Settings of TD3: validation, and their form in a checkpoint."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from td3_lightning.algorithm.encoders import as_encoder
from td3_lightning.algorithm.exploration import MAX_NOISE
from td3_lightning.algorithm.losses import CriticLoss
from td3_lightning.algorithm.network_memory import check_memory, num_weights
from td3_lightning.errors import (
    UsageError,
    require_bool,
    require_choice,
    require_floats,
    require_int,
    require_ints,
)
from td3_lightning.schedules import Constant, Schedule, as_int_schedule, as_schedule, varies
from td3_lightning.serialization.primitives import to_primitives

Gradients = Literal["manual", "autograd"]
INTEGERS = ("policy_freq", "target_update_freq")  # rounded values of schedules


@dataclass
class TD3Settings:
    """Validated settings of TD3; `TD3` documents each of them.

    Raises:
        UsageError: A setting is out of its range.
    """

    obs_dim: int
    action_low: list[float]
    action_high: list[float]
    hidden_dims: Any
    num_critics: int
    layer_norm: bool
    encoder: Any
    actor_lr: Any
    critic_lr: Any
    tau: Any
    policy_noise: Any
    noise_clip: Any
    policy_freq: Any
    max_grad_norm: Any
    gradients: Gradients
    target_update_freq: Any
    critic_loss: CriticLoss
    critic_hidden_dims: Any
    critic_encoder: Any
    normalize_observations: bool
    bc_weight: Any
    normalize_rewards: bool
    paper_tau: ClassVar[str] = "0.005"
    target_fix: ClassVar[str] = "Use 250, for example, or omit it for an update of the targets with each actor update."

    def __post_init__(self) -> None:
        self._check_networks()
        names = ("hidden_dims", "critic_hidden_dims", "num_critics", "zs_dim")
        check_memory({name: held for name in names if (held := vars(self).get(name)) is not None}, self.num_weights)
        self._check_update()

    def _check_networks(self) -> None:
        self.obs_dim = require_int("obs_dim", self.obs_dim, least=1)
        self.action_low = require_floats("action_low", self.action_low)
        self.action_high = require_floats("action_high", self.action_high)
        self.hidden_dims = require_ints("hidden_dims", self.hidden_dims, 1)
        if self.critic_hidden_dims is not None:
            self.critic_hidden_dims = require_ints("critic_hidden_dims", self.critic_hidden_dims, 1)
        self.num_critics = require_int("num_critics", self.num_critics, least=1)
        self.layer_norm = require_bool("layer_norm", self.layer_norm)
        self.encoder = as_encoder("encoder", self.encoder)
        self.critic_encoder = as_encoder("critic_encoder", self.critic_encoder)
        if self.critic_encoder is not None and self.shares_encoder:
            raise UsageError(
                "encoder must have shared false with critic_encoder, because the critics' features differ, got true. "
                "Set encoder.init_args.shared to false, or omit encoder for an actor without one."
            )
        self.normalize_observations = require_bool("normalize_observations", self.normalize_observations)
        self.normalize_rewards = require_bool("normalize_rewards", self.normalize_rewards)

    def _check_update(self) -> None:
        self._check_schedule("actor_lr", least=0)
        self._check_schedule("critic_lr", least=0)
        self._check_schedule("tau", most=1, above=0, fix=f"The paper uses {self.paper_tau}.")
        self._check_schedule("policy_noise", least=0, most=MAX_NOISE, fix="The paper uses 0.2.")
        self._check_schedule("noise_clip", least=0, most=MAX_NOISE, fix="The paper uses 0.5.")
        self.policy_freq = as_int_schedule("policy_freq", self.policy_freq, fix="The paper uses 2.")
        if self.target_update_freq is not None:
            self.target_update_freq = as_int_schedule("target_update_freq", self.target_update_freq, self.target_fix)
        if self.max_grad_norm is not None:
            self._check_schedule("max_grad_norm", above=0, fix="Omit max_grad_norm for no clipping.")
        if self.bc_weight is not None:
            fix = "Use 0.4 for TD3+BC, 0.1 for TD7, or omit it for online training."
            self._check_schedule("bc_weight", above=0, fix=fix)
        require_choice("gradients", self.gradients, get_args(Gradients))
        require_choice("critic_loss", self.critic_loss, get_args(CriticLoss))

    def _check_schedule(self, name: str, **limits: Any) -> None:
        """Convert a setting to a schedule with the limits of `as_schedule`."""
        setattr(self, name, as_schedule(name, getattr(self, name), **limits))

    @property
    def num_weights(self) -> int:
        """Number of weights of the actor and the critics without their encoders, whose features are unknown here."""
        actions, has_encoder = len(self.action_low), self.encoder is not None
        inputs = 0 if has_encoder else self.obs_dim
        critic_inputs = 0 if has_encoder or self.critic_encoder is not None else self.obs_dim
        critic_dims = self.hidden_dims if self.critic_hidden_dims is None else self.critic_hidden_dims
        actor = num_weights([inputs, *self.hidden_dims, actions])
        return actor + self.num_critics * num_weights([critic_inputs + actions, *critic_dims, 1])

    @property
    def shares_encoder(self) -> bool:
        """Whether the actor receives the critics' features."""
        return self.encoder is not None and self.encoder.shared

    @property
    def target_interval(self) -> Schedule:
        """Critic updates per update of the targets."""
        freq: Schedule = self.policy_freq if self.target_update_freq is None else self.target_update_freq
        return freq

    @property
    def varying(self) -> dict[str, Schedule]:
        """The schedules that are not constant, by the names of their settings."""
        return {name: value for name, value in vars(self).items() if varies(value)}

    def hyperparameters(self) -> dict[str, Any]:
        """Return the settings as plain Python values, as a checkpoint holds them."""
        values = dict(vars(self))
        for name in ("encoder", "critic_encoder"):
            values[name] = None if values[name] is None else values[name].plain()
        for name, value in values.items():
            if isinstance(value, Constant):
                values[name] = int(value.value) if name in INTEGERS else value.value
            elif isinstance(value, Schedule):
                values[name] = value.plain()
        plain: dict[str, Any] = to_primitives(values, "model")
        return plain

    def action_box(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the smallest and largest actions (action_dim,), as float32 inside the box of float64 bounds."""
        low, high = np.array(self.action_low, np.float64), np.array(self.action_high, np.float64)
        return _round_up(low), -_round_up(-high)


@dataclass
class TD7Settings(TD3Settings):
    """Validated settings of TD7; `TD7` documents each of them.

    Raises:
        UsageError: A setting is out of its range.
    """

    zs_dim: int
    encoder_lr: Any
    paper_tau: ClassVar[str] = "1"
    target_fix: ClassVar[str] = "The paper uses 250."

    def _check_networks(self) -> None:
        super()._check_networks()
        self.zs_dim = require_int("zs_dim", self.zs_dim, least=1, fix="The paper uses 256.")
        if not self.hidden_dims:
            raise UsageError("hidden_dims must have at least one width for TD7, got []. Use [256, 256], for example.")

    @property
    def num_weights(self) -> int:
        """Number of weights of the actor, the critics and the encoder."""
        obs, actions, widths, zs = self.obs_dim, len(self.action_low), self.hidden_dims, self.zs_dim
        first = widths[0]
        actor = num_weights([obs, first]) + num_weights([first + zs, *widths, actions])
        critic = num_weights([obs + actions, first]) + num_weights([first + 2 * zs, *widths, 1])
        encoder = num_weights([obs, *widths, zs]) + num_weights([zs + actions, *widths, zs])
        return actor + self.num_critics * critic + encoder

    def _check_update(self) -> None:
        super()._check_update()
        self._check_schedule("encoder_lr", least=0)
        if self.target_update_freq is None:
            raise UsageError(f"target_update_freq must be an integer for TD7, got None. {self.target_fix}")


def _round_up(bounds: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the smallest float32 values that are not below the bounds."""
    nearest = bounds.astype(np.float32)
    return np.where(nearest < bounds, np.nextafter(nearest, np.float32(np.inf)), nearest)

"""TD7 (Fujimoto et al., 2023, https://arxiv.org/abs/2306.02451): TD3 with embeddings.

This file contains the differences from TD3's update. Prioritized replay and policy checkpoints are settings of the data
module and of the Trainer, which work with TD3 as well.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from td3_lightning.algorithm.learner import Learner
from td3_lightning.algorithm.losses import CRITIC_LOSSES, CriticLoss, at_least_float32, td7_bc_loss
from td3_lightning.algorithm.sale import SALE, SALEActor, SALECritics, ValueRange
from td3_lightning.algorithm.settings import TD7Settings
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.replay.batch import Batch
from td3_lightning.schedules import Schedule

ENCODER = 2  # place in `configure_optimizers`, after the actor and the critics


class TD7(TD3):
    """TD3 with state-action embeddings (SALE), a clipped value range, LAP's critic loss and hard target updates.

    The encoder predicts the embedding of the next state, or of the state n steps later with `data.n_step`. The actor
    and the critics see embeddings from `fixed_encoder`, and the targets see those from `fixed_encoder_target`. Both are
    replaced at each target update. The paper's TD7 has prioritized replay, `ReplayData(priority_alpha=0.4)`, and policy
    checkpoints, the callback `PolicyCheckpoint`, in addition. Both also work with TD3.

    Args:
        obs_dim: Numbers in an observation; taken from the environment.
        action_low: Smallest value of each action; taken from the environment.
        action_high: Largest value of each action; taken from the environment.
        hidden_dims: Width of each hidden layer of the encoder, the actor and every critic.
        zs_dim: Numbers in an embedding.
        num_critics: Number of critics; the target uses the minimum of their values. The paper uses 2.
        actor_lr: Learning rate of the actor's Adam, a number or a schedule over env_steps.
        critic_lr: Learning rate of the critics' Adam, a number or a schedule over env_steps.
        encoder_lr: Learning rate of the encoder's Adam, a number or a schedule over env_steps.
        tau: Share of the online parameters in each update of the targets, in (0, 1]. The paper copies them (1).
        policy_noise: Standard deviation of the target policy's noise relative to half the action range.
        noise_clip: Bound of the target policy's noise relative to half the action range.
        policy_freq: Critic updates per update of the actor.
        target_update_freq: Critic updates per update of the targets and of the fixed encoders.
        max_grad_norm: Largest norm of each network's gradient; None for no clipping.
        critic_loss: "huber", LAP's, or "mse", TD3's.
        normalize_observations: Normalize observations by the mean and variance of all training observations so far,
            and clip them to [-10, 10].
        bc_weight: Weight of behavior cloning in the actor loss, for offline data: the paper's lambda, which is 0.1.
            A larger value keeps the policy closer to the data. None for online training.

    Raises:
        UsageError: A setting is out of its range.
    """

    settings: TD7Settings
    algorithm = "TD7"
    _embedded: tuple[Tensor, Tensor] | None = None  # observations of the running update, and their embedding
    actor: SALEActor

    def __init__(
        self,
        obs_dim: int,
        action_low: list[float],
        action_high: list[float],
        hidden_dims: Sequence[int] = (256, 256),
        *,
        zs_dim: int = 256,
        num_critics: int = 2,
        actor_lr: float | Schedule = 3e-4,
        critic_lr: float | Schedule = 3e-4,
        encoder_lr: float | Schedule = 3e-4,
        tau: float = 1.0,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        policy_freq: int = 2,
        target_update_freq: int = 250,
        max_grad_norm: float | None = None,
        critic_loss: CriticLoss = "huber",
        normalize_observations: bool = False,
        bc_weight: float | None = None,
    ) -> None:
        settings = TD7Settings.of(locals())
        # save_hyperparameters compares these names with the saved settings, which fails for arrays.
        action_low, action_high, hidden_dims = settings.action_low, settings.action_high, settings.hidden_dims
        Learner.__init__(self, settings)  # the constructor of TD3 takes other arguments
        self.encoder = SALE(settings.obs_dim, len(action_low), hidden_dims, settings.zs_dim)
        self.fixed_encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        self.fixed_encoder_target = copy.deepcopy(self.encoder).requires_grad_(False)
        self.value_range = ValueRange()

    def build_networks(self) -> tuple[Any, Any]:
        """Build the actor and the critics with fresh parameters."""
        settings = self.settings
        obs_dim, action_dim = settings.obs_dim, len(settings.action_low)
        sizes = settings.hidden_dims, settings.zs_dim
        actor = SALEActor(obs_dim, settings.action_low, settings.action_high, *sizes)
        return actor, SALECritics(obs_dim, action_dim, *sizes, settings.num_critics)

    # The update (algorithm 1 of the paper).

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update the encoder, then the critics, the actor and the targets as TD3 does, with actions in [-1, 1]."""
        batch = batch._replace(action=self.actor.to_unit_range(batch.action))
        encoder_loss = self.update_encoder(batch)
        self._embedded = batch.obs, self._embed(batch.obs)  # the critics and the actor share the embedding
        logs = super().update(batch)
        self._embedded = None
        return {**logs, "encoder_loss": encoder_loss}

    def update_encoder(self, batch: Batch) -> Tensor:
        """Take an Adam step on the encoder loss; return the loss before the step."""
        loss = self.encoder_loss(batch)
        self.compute_gradients(loss, self.encoder)
        self.step_optimizer(ENCODER, self.settings.encoder_lr)
        return loss.detach()

    @torch.no_grad()
    def update_targets(self) -> None:
        """Update the targets, replace the fixed encoders, and use the range of the targets seen so far."""
        super().update_targets()
        fixed = self.fixed_encoder  # copied to its target first, because it is replaced then
        for source, target in ((fixed, self.fixed_encoder_target), (self.encoder, fixed)):
            torch._foreach_copy_(list(target.parameters()), list(source.parameters()))
        self.value_range.update()

    def encoder_loss(self, batch: Batch) -> Tensor:
        """Return the mean squared error of the predicted embedding of `next_obs`, which gets no gradient itself."""
        with torch.no_grad():
            next_z_s = self.encoder.embed_state(batch.next_obs)
        prediction = self.encoder.embed_action(self.encoder.embed_state(batch.obs), batch.action)
        return at_least_float32(prediction - next_z_s).square().mean()

    def td_target(self, batch: Batch, noise: Tensor) -> Tensor:
        """Return reward + discount * clipped min over critics of target Q at the smoothed target action, (batch,)."""
        obs, encoder = batch.next_obs, self.fixed_encoder_target
        z_s = encoder.embed_state(obs)
        action = (self.actor_target.tanh_action(obs, z_s) + noise).clamp_(-1, 1)
        next_q = self.critics_target(obs, action, encoder.embed_action(z_s, action), z_s).amin(dim=0)
        target = batch.reward + batch.discount * self.value_range.clip(next_q)
        self.value_range.observe(target)
        return target

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum over critics of the mean loss of the TD error, and the Q-values (N, batch)."""
        with torch.no_grad():
            target = self.td_target(batch, noise)
            z_s = self._embed(batch.obs)
            z_sa = self.fixed_encoder.embed_action(z_s, batch.action)
        q = self.critics(batch.obs, batch.action, z_sa, z_s)
        loss, self._td_error = CRITIC_LOSSES[self.settings.critic_loss](q - target)
        return loss, q

    def actor_loss(self, batch: Batch) -> Tensor:
        """Return minus the mean value that the critics assign to the actor's actions, or the loss of offline TD7."""
        z_s = self._embed(batch.obs)
        action = self.actor.tanh_action(batch.obs, z_s)
        q = at_least_float32(self.critics(batch.obs, action, self.fixed_encoder.embed_action(z_s, action), z_s))
        if self.settings.bc_weight is None:
            return -q.mean()
        return td7_bc_loss(q, action - batch.action, self.settings.bc_weight)

    @torch.no_grad()
    def _embed(self, obs: Tensor) -> Tensor:
        """Return z_s of the fixed encoder. An update computes it once per batch."""
        if self._embedded is not None and self._embedded[0] is obs:
            return self._embedded[1]
        return self.fixed_encoder.embed_state(obs)

    def configure_optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """Create Adam for the actor, the critics and the encoder."""
        return *super().configure_optimizers(), self.new_adam(self.encoder, self.settings.encoder_lr)

    def policy_modules(self) -> tuple[nn.Module, ...]:
        """Return the modules that `forward` uses."""
        return self.normalizer, self.actor, self.fixed_encoder

    def forward(self, obs: Tensor) -> Tensor:
        """Return greedy actions (batch, action_dim) for observations (batch, obs_dim), in the environment's units."""
        obs = self.normalizer(obs)
        action: Tensor = self.actor(obs, self.fixed_encoder.embed_state(obs))
        return action

    def q_value(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the first critic's values (batch,) of actions (batch, action_dim) in the environment's units."""
        obs, action = self.normalizer(obs), self.actor.to_unit_range(action)
        z_s = self.fixed_encoder.embed_state(obs)
        q: Tensor = self.critics(obs, action, self.fixed_encoder.embed_action(z_s, action), z_s)
        return q[0]

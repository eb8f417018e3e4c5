"""TD3 (Fujimoto, van Hoof and Meger, 2018, https://arxiv.org/abs/1802.09477) as a LightningModule."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from td3_lightning.algorithm.encoders import Encoder
from td3_lightning.algorithm.learner import ACTOR, CRITICS, Learner
from td3_lightning.algorithm.losses import CRITIC_LOSSES, CriticLoss, at_least_float32, td3_bc_loss
from td3_lightning.algorithm.networks import build_networks
from td3_lightning.algorithm.settings import TD3Settings
from td3_lightning.algorithm.update_rules import find_update_rule
from td3_lightning.replay.batch import Batch
from td3_lightning.schedules import Schedule


class TD3(Learner):
    """Twin Delayed DDPG: the actor, N critics, their targets and the update.

    Args:
        obs_dim: Numbers in an observation; taken from the environment.
        action_low: Smallest value of each action; taken from the environment.
        action_high: Largest value of each action; taken from the environment.
        hidden_dims: Width of each hidden layer of the actor and of every critic.
        num_critics: Number of critics; the target uses the minimum of their values. The paper uses 2.
        layer_norm: Normalize each hidden layer before its ReLU.
        encoder: Network before the hidden layers, shared by actor and critics or one for each. None means no encoder.
        actor_lr: Learning rate of the actor's Adam, a number or a schedule over env_steps.
        critic_lr: Learning rate of the critics' Adam, a number or a schedule over env_steps.
        tau: Share of the online parameters in each Polyak average, in (0, 1].
        policy_noise: Standard deviation of the target policy's noise relative to half the action range.
        noise_clip: Bound of the target policy's noise relative to half the action range.
        policy_freq: Critic updates per update of the actor and, without `target_update_freq`, of the targets.
        max_grad_norm: Largest norm of the actor's and of the critics' gradient; None for no clipping.
        target_update_freq: Critic updates per update of the targets; None means `policy_freq`. With tau = 1, the
            targets become copies (hard updates).
        critic_loss: "mse", the paper's, or "huber", which `data.priority_alpha` requires.
        normalize_observations: Normalize observations by the mean and variance of all training observations so far,
            and clip them to [-10, 10].
        bc_weight: Weight of behavior cloning in the actor loss, for offline data: 1 / alpha of the TD3+BC paper, which
            uses 0.4. A larger value keeps the policy closer to the data. None for TD3's loss.

    Raises:
        UsageError: A setting is out of its range.
    """

    _rule: Any = None
    _rule_is_current = False

    def __init__(
        self,
        obs_dim: int,
        action_low: list[float],
        action_high: list[float],
        hidden_dims: Sequence[int] = (256, 256),
        *,
        num_critics: int = 2,
        layer_norm: bool = False,
        encoder: Encoder | None = None,
        actor_lr: float | Schedule = 3e-4,
        critic_lr: float | Schedule = 3e-4,
        tau: float = 0.005,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        policy_freq: int = 2,
        max_grad_norm: float | None = None,
        target_update_freq: int | None = None,
        critic_loss: CriticLoss = "mse",
        normalize_observations: bool = False,
        bc_weight: float | None = None,
    ) -> None:
        settings = TD3Settings.of(locals())
        # save_hyperparameters compares these names with the saved settings, which fails for arrays.
        action_low, action_high, hidden_dims = settings.action_low, settings.action_high, settings.hidden_dims
        super().__init__(settings)

    def build_networks(self) -> tuple[Any, Any]:
        """Build the actor and the critics with fresh parameters."""
        return build_networks(self.settings)

    # The update (Algorithm 1 of the paper).

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Take one update with a batch of raw observations."""
        normalized = self.normalizer(batch.obs), self.normalizer(batch.next_obs)
        return self.update(batch._replace(obs=normalized[0], next_obs=normalized[1]))

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update the critics, and less often the actor (`policy_freq`) and the targets (`target_update_freq`)."""
        rule = self.update_rule
        self.updates += 1
        critic_loss, q = rule.update_critics(batch)
        logs = {"critic_loss": critic_loss, "q_mean": q.mean(), **self._td_error}
        if self.updates % self.settings.policy_freq == 0:
            logs["actor_loss"] = rule.update_actor(batch)
        if self.updates % (self.settings.target_update_freq or self.settings.policy_freq) == 0:
            self.update_targets()
        return logs

    def update_critics(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Take an Adam step on the critic loss; return the loss and the Q-values (N, batch) before the step."""
        loss, q = self.critic_loss(batch, self.draw_target_noise(batch.action))
        self.compute_gradients(loss, self.critics)
        self.step_optimizer(CRITICS, self.settings.critic_lr)
        return loss.detach(), q.detach()

    def update_actor(self, batch: Batch) -> Tensor:
        """Take an Adam step on the actor loss; return the loss before the step."""
        loss = self.actor_loss(batch)
        self.compute_gradients(loss, self.actor)
        self.step_optimizer(ACTOR, self.settings.actor_lr)
        return loss.detach()

    @torch.no_grad()
    def update_targets(self) -> None:
        """Polyak average: target <- (1 - tau) target + tau online, for the actor and the critics."""
        for online, target in ((self.critics, self.critics_target), (self.actor, self.actor_target)):
            torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), self.settings.tau)

    def draw_target_noise(self, action: Tensor) -> Tensor:
        """Draw clipped noise for actions (batch, action_dim), relative to half the action range."""
        noise = torch.randn(action.shape, generator=self.noise_generator)  # on the CPU: the same for every device
        scale = self.actor_target.scale
        noise = (noise.pin_memory() if scale.is_cuda else noise).to(scale, non_blocking=True)
        bound = self.settings.noise_clip
        return noise.mul_(self.settings.policy_noise).clamp_(-bound, bound)

    def smooth_target_action(self, action: Tensor, noise: Tensor) -> Tensor:
        """Add noise to actions, both (batch, action_dim), and clip the sum to the action box."""
        centre, scale = self.actor_target.centre, self.actor_target.scale
        smoothed: Tensor = (noise * scale).add_(action).clamp_(centre - scale, centre + scale)
        return smoothed

    def td_target(self, batch: Batch, noise: Tensor) -> Tensor:
        """Return reward + discount * min over critics of target Q at the smoothed target action, (batch,)."""
        features = self.critics_target.encoder(batch.next_obs)
        next_action = self.actor_target(self._actor_input(batch.next_obs, features))
        next_q: Tensor = self.critics_target(features, self.smooth_target_action(next_action, noise)).amin(dim=0)
        return batch.reward + batch.discount * next_q

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum over critics of the mean loss of the TD error, and the Q-values (N, batch)."""
        with torch.no_grad():
            target = self.td_target(batch, noise)
        q = self.critics(self.critics.encoder(batch.obs), batch.action)
        loss, self._td_error = CRITIC_LOSSES[self.settings.critic_loss](q - target)
        return loss, q

    def actor_loss(self, batch: Batch) -> Tensor:
        """Return minus the mean value that the first critic assigns to the actor's actions, or the loss of TD3+BC."""
        with torch.no_grad():  # only the critic loss trains the critics' encoder
            features = self.critics.encoder(batch.obs)
        action = self.actor(self._actor_input(batch.obs, features))
        q = at_least_float32(self.critics.q1(features, action))
        if self.settings.bc_weight is None:
            return -q.mean()
        return td3_bc_loss(q, (action - batch.action) / self.actor.scale, self.settings.bc_weight)

    def _actor_input(self, obs: Tensor, features: Tensor) -> Tensor:
        """Return the critics' features if the actor shares their encoder, else the observations."""
        return features if self.settings.shares_encoder else obs

    # A rule of `td3_lightning.fast` takes the steps above in less time, but only if their code is unchanged.

    @property
    def update_rule(self) -> Any:
        """The rule that takes the steps in this epoch: a faster one that supports this agent, or the agent itself."""
        if not self._rule_is_current:
            self._rule, self._rule_is_current = find_update_rule(self), True
        return self._rule or self

    def check_optimizers(self) -> None:
        """Check the optimizers, and choose the update rule again, because another Trainer has other optimizers."""
        super().check_optimizers()
        self._rule_is_current = False
        find_update_rule(self)  # compares the code with its file before a warm-up, in which the file may change

    def on_train_epoch_start(self) -> None:
        """Choose the update rule again: hooks, layers or the precision may have changed."""
        self._rule_is_current = False

    def forward(self, obs: Tensor) -> Tensor:
        """Return greedy actions (batch, action_dim) for observations (batch, obs_dim), in the environment's units."""
        obs = self.normalizer(obs)
        action: Tensor = self.actor(self.critics.encoder(obs) if self.settings.shares_encoder else obs)
        return action

    def q_value(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the first critic's values (batch,) of actions (batch, action_dim) in the environment's units."""
        q: Tensor = self.critics.q1(self.critics.encoder(self.normalizer(obs)), action)
        return q

    def __getstate__(self) -> dict[str, Any]:
        """Leave the update rule, which is found again, out of copies and pickles."""
        return {**super().__getstate__(), "_rule": None, "_rule_is_current": False}

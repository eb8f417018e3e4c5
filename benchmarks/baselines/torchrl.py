"""TorchRL (https://github.com/pytorch/rl): its collector, replay buffer, loss and target updater.

The loop follows TorchRL's `sota-implementations/td3`: it collects 1,000 frames, then makes as many updates. The replay
buffer is in memory and does not prefetch, as in its `td3-fast.py`. The flag "compiled" compiles the update and the
policy.
"""

from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, DoubleToFloat, InitTracker, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.libs.gym import GymWrapper
from torchrl.modules import MLP, AdditiveGaussianModule, TanhModule, ValueOperator
from torchrl.objectives import SoftUpdate
from torchrl.objectives.td3 import TD3Loss
from tqdm import tqdm

from benchmarks.clock import Clock, stopwatch
from benchmarks.workloads import WARMUP_STEPS, Workload

FRAMES_PER_BATCH = 1_000  # TorchRL's own value


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    compiled = "compiled" in flags
    env = TransformedEnv(
        GymWrapper(Clock(workload.make_env())), Compose(StepCounter(), InitTracker(), DoubleToFloat(), RewardSum())
    )
    actor, critic = make_networks(env, workload)
    learner = Learner(env, actor, critic, workload)
    collector, noise = make_collector(env, actor, workload, compiled)
    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(workload.capacity), batch_size=workload.batch_size, pin_memory=False
    )
    update = torch.compile(learner.update) if compiled else learner.update
    frames, progress = 0, tqdm()
    for batch in collector:
        noise.step(batch.numel())
        collector.update_policy_weights_()
        batch = batch.reshape(-1)
        progress.update(batch.numel())
        replay.extend(batch)
        if frames == 0:
            stopwatch().watch(lambda: learner.updates, batch[:1].bytes(), FRAMES_PER_BATCH)
        frames += batch.numel()
        if frames >= WARMUP_STEPS:
            for _ in range(FRAMES_PER_BATCH):
                learner.updates += 1
                losses = update(replay.sample(), learner.updates % workload.policy_freq == 0)
                [loss.item() for loss in losses]
                stopwatch().report_first_update()
        returns = batch["next", "episode_reward"][batch["next", "done"]]
        if len(returns):
            tqdm.write(f"return {returns.mean().item():.2f}")


def make_collector(
    env: Any, actor: TensorDictSequential, workload: Workload, compiled: bool
) -> tuple[Collector, AdditiveGaussianModule]:
    """Create the collector, and the exploration noise that its policy adds."""
    noise = AdditiveGaussianModule(
        spec=env.action_spec, sigma_init=1, sigma_end=1, mean=0, std=workload.exploration_noise
    )
    collector = Collector(
        env,
        TensorDictSequential(actor, noise),
        init_random_frames=WARMUP_STEPS,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=-1,
        compile_policy=compiled,
    )
    return collector, noise


def make_networks(env: Any, workload: Workload) -> tuple[TensorDictSequential, ValueOperator]:
    """Create the policy and a critic."""
    obs_dim, action_dim = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    norms = [{"normalized_shape": width} for width in workload.hidden_dims] if workload.layer_norm else None
    mlp = partial(
        MLP,
        num_cells=list(workload.hidden_dims),
        activation_class=nn.ReLU,
        norm_class=nn.LayerNorm if workload.layer_norm else None,
        norm_kwargs=norms,
    )
    actor = TensorDictSequential(
        TensorDictModule(mlp(in_features=obs_dim, out_features=action_dim), ["observation"], ["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"], spec=env.action_spec),
    )
    critic = ValueOperator(mlp(in_features=obs_dim + action_dim, out_features=1), in_keys=["action", "observation"])
    return actor, critic


class Learner:
    """Loss, optimizers and target updater."""

    def __init__(self, env: Any, actor: TensorDictSequential, critic: ValueOperator, workload: Workload) -> None:
        self.loss = TD3Loss(
            actor_network=actor,
            qvalue_network=critic,
            num_qvalue_nets=2,
            loss_function="l2",
            delay_actor=True,
            delay_qvalue=True,
            action_spec=env.action_spec,
            policy_noise=workload.policy_noise,
            noise_clip=workload.noise_clip,
        )
        self.loss.make_value_estimator(gamma=workload.gamma)
        self.averages = SoftUpdate(self.loss, eps=1 - workload.tau)
        self.critic_optimizer = torch.optim.Adam(self._weights("qvalue_network_params"), lr=workload.lr)
        self.actor_optimizer = torch.optim.Adam(self._weights("actor_network_params"), lr=workload.lr)
        self.updates = 0

    def _weights(self, name: str) -> list[torch.Tensor]:
        return list(getattr(self.loss, name).flatten_keys().values())

    def update(self, batch: TensorDict, with_actor: bool) -> list[torch.Tensor]:
        """Make one update and return its losses."""
        q_loss, _ = self.loss.value_loss(batch)
        q_loss.backward()
        self.critic_optimizer.step()
        self.critic_optimizer.zero_grad(set_to_none=True)
        if not with_actor:
            return [q_loss.detach()]
        actor_loss, _ = self.loss.actor_loss(batch)
        actor_loss.backward()
        self.actor_optimizer.step()
        self.actor_optimizer.zero_grad(set_to_none=True)
        self.averages.step()
        return [q_loss.detach(), actor_loss.detach()]

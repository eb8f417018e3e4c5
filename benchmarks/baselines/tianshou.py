"""Tianshou 2 (https://github.com/thu-ml/tianshou): `TD3.run_training`, its off-policy trainer with progress bar."""

import numpy as np
from tianshou.algorithm import TD3
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.exploration import GaussianNoise
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorDeterministic, ContinuousCritic
from torch import nn

from benchmarks.clock import Clock, stopwatch
from benchmarks.workloads import WARMUP_STEPS, Workload


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    env = Clock(workload.make_env())
    algorithm = make_algorithm(env, workload)
    buffer = VectorReplayBuffer(workload.capacity, 1)
    collector = Collector(algorithm, DummyVectorEnv([lambda: env]), buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=WARMUP_STEPS, random=True)
    arrays = [field for field in buffer._meta.__dict__.values() if isinstance(field, np.ndarray)]
    stopwatch().watch(lambda: algorithm._cnt, sum(array.nbytes for array in arrays) / workload.capacity)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=10**9,
            collection_step_num_env_steps=1,
            update_step_num_gradient_steps_per_sample=1.0,
            batch_size=workload.batch_size,
            test_in_training=False,
        )
    )


def make_networks(env: Clock, workload: Workload) -> tuple[ContinuousActorDeterministic, list[ContinuousCritic]]:
    """Build the actor and the critics."""
    obs_shape, action_shape = env.observation_space.shape, env.action_space.shape
    widths = list(workload.hidden_dims)
    norm = nn.LayerNorm if workload.layer_norm else None
    actor = ContinuousActorDeterministic(
        preprocess_net=Net(state_shape=obs_shape, hidden_sizes=widths, norm_layer=norm),
        action_shape=action_shape,
        max_action=1.0,
    )
    critics = [
        ContinuousCritic(
            preprocess_net=Net(
                state_shape=obs_shape, action_shape=action_shape, hidden_sizes=widths, concat=True, norm_layer=norm
            )
        )
        for _ in range(2)
    ]
    return actor, critics


def make_algorithm(env: Clock, workload: Workload) -> TD3:
    """Build the agent as in Tianshou's own examples."""
    actor, critics = make_networks(env, workload)
    policy = ContinuousDeterministicPolicy(
        actor=actor,
        exploration_noise=GaussianNoise(sigma=workload.exploration_noise),
        action_space=env.action_space,
    )
    optimizer = AdamOptimizerFactory(lr=workload.lr)
    return TD3(
        policy=policy,
        policy_optim=optimizer,
        critic=critics[0],
        critic_optim=optimizer,
        critic2=critics[1],
        critic2_optim=optimizer,
        tau=workload.tau,
        gamma=workload.gamma,
        policy_noise=workload.policy_noise,
        update_actor_freq=workload.policy_freq,
        noise_clip=workload.noise_clip,
    )

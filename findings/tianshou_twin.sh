#!/usr/bin/env bash
# The twin critics of Tianshou's TD3 are one critic, twice: by default, they stay equal for the whole run.
#
# Versions: Tianshou 2.0.1, PyTorch 2.13.0, Gymnasium 1.4.0.
#
# TD3 takes the smaller of two values against overestimation. One expects that TD3(critic=...) makes a second critic with weights of its
# own, as the authors and other libraries do. It makes copy.deepcopy(critic). Both critics have equal weights, an equal optimizer, and the
# same batches and targets, so their gradients are equal too. After 100 updates, no weight differs. With a second critic that was
# constructed separately, they differ from the start. SAC and DiscreteSAC share this base class.
# Consequence: the minimum of both values is the first value, and the run is DDPG with target noise and delayed actor updates, at the
# price of TD3. The losses of both critics are equal in the log.
#
# Output:
#   TD3(critic=...): largest difference of the critics' weights after 100 updates 0.0
#   TD3(critic=..., critic2=...): more than 0.1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 tianshou==2.0.1 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import torch
from tianshou.algorithm import TD3
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, ReplayBuffer
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorDeterministic, ContinuousCritic
from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

torch.manual_seed(0)
torch.set_num_threads(1)
env = gym.make("Pendulum-v1")


def make_critic():
    return ContinuousCritic(preprocess_net=Net(state_shape=3, action_shape=1, hidden_sizes=[32, 32], concat=True))


def make_td3(**second):
    actor = ContinuousActorDeterministic(preprocess_net=Net(state_shape=3, hidden_sizes=[32, 32]), action_shape=1)
    policy = ContinuousDeterministicPolicy(actor=actor, action_space=env.action_space)
    adam = AdamOptimizerFactory(lr=1e-3)
    return TD3(policy=policy, policy_optim=adam, critic=make_critic(), critic_optim=adam, **second)


def record(steps):
    buffer = ReplayBuffer(steps)
    obs, _ = env.reset(seed=0)
    env.action_space.seed(1)
    for _ in range(steps):
        act = env.action_space.sample()
        obs_next, rew, terminated, truncated, _ = env.step(act)
        row = {"obs": obs, "act": act, "rew": rew, "obs_next": obs_next, "info": {}}
        buffer.add(Batch(row, terminated=terminated, truncated=truncated))
        obs = obs_next
    return buffer


def difference(td3, buffer):
    """Update 100 times, and return the largest difference between the weights of both critics."""
    with policy_within_training_step(td3.policy), torch_train_mode(td3):
        for _ in range(100):
            td3.update(buffer=buffer, sample_size=64)
    return max((a - b).abs().max().item() for a, b in zip(td3.critic.parameters(), td3.critic2.parameters()))


buffer = record(200)
default, own = difference(make_td3(), buffer), difference(make_td3(critic2=make_critic()), buffer)
print(f"TD3(critic=...): largest difference of the critics' weights after 100 updates {default}")
print("TD3(critic=..., critic2=...):", "more than 0.1" if own > 0.1 else own)
raise SystemExit(not (default == 0 and own > 0.1))
PYTHON

#!/usr/bin/env bash
# PFRL's DDPG discounts the value after n steps like that after one step, so its values grow with n; TD3 with the same buffer has the right ones.
#
# Versions: PFRL 0.4.0, PyTorch 2.13.0, gym 0.26.2 (PFRL imports it), NumPy 2.4.6.
#
# A ReplayBuffer(num_steps=n) is "for N-step updates". It stores up to n steps per sample, and batch_experiences returns
# the sum of their rewards together with the power of the discount for the value after them. DQN, TD3 and SAC take this power. DDPG takes the
# sum of n rewards and multiplies the value by the plain discount. There is no warning, and no word in the documentation of DDPG.
# Here, each step of an endless task has the reward 1, so its value is 1 / (1 - gamma). A critic with one number begins with this value. DDPG
# moves it to the sum of n rewards / (1 - gamma), n times too much for a discount near 1.
# Consequence: the values of DDPG are up to n times too large, and a far reward counts more than asked for: n steps later, it has the weight
# gamma instead of gamma ** n. A comparison of n, or of DDPG with TD3, compares different objectives. With num_steps=1, both are right.
#
# Output:
#   gamma 0.9, value 10.0: DDPG with num_steps=1: 10.0
#   gamma 0.9, value 10.0: DDPG with num_steps=3: 27.1
#   gamma 0.9, value 10.0: TD3 with num_steps=3: 10.0
#   gamma 0.99, value 100.0: DDPG with num_steps=3: 297.0
#   gamma 0.99, value 100.0: TD3 with num_steps=3: 100.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0
"$folder/venv/bin/pip" install -qq --no-compile pfrl==0.4.0 gym==0.26.2 numpy==2.4.6 packaging==26.4
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import warnings

import numpy as np
import torch
from pfrl import explorers, replay_buffers
from pfrl.agents import DDPG, TD3
from pfrl.policies import DeterministicHead
from torch import nn

warnings.simplefilter("ignore")
torch.set_num_threads(1)


class OneNumber(nn.Module):
    """A critic that has the same value for each state and action."""

    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(torch.tensor([value]))

    def forward(self, inputs):
        return self.value.expand(len(inputs[0]), 1)


def learn(kind, steps, gamma):
    """Let an agent learn from an endless task, and return the value of its critic."""
    buffer = replay_buffers.ReplayBuffer(1000, num_steps=steps)
    nothing = np.zeros(1, np.float32)
    for _ in range(200):
        buffer.append(nothing, nothing, 1.0, next_state=nothing)
    exact = 1 / (1 - gamma)
    critics = [OneNumber(exact) for _ in range(2 if kind is TD3 else 1)]
    actor = nn.Sequential(nn.Linear(1, 1), DeterministicHead())
    optimizers = [torch.optim.SGD(actor.parameters(), lr=0)] + [torch.optim.SGD(critic.parameters(), lr=0.5) for critic in critics]
    settings = {"target_update_interval": 1, "target_update_method": "soft"} if kind is DDPG else {"policy_update_delay": 1}
    noise = explorers.AdditiveGaussian(0.1)
    settings |= {"replay_buffer": buffer, "gamma": gamma, "explorer": noise, "soft_update_tau": 1.0, "replay_start_size": 100}
    agent = kind(actor, *critics, *optimizers, **settings)
    for _ in range(round(10 * exact)):
        agent.update(buffer.sample(32))
        agent.sync_target_network()
    value = critics[0].value.item()
    print(f"gamma {gamma}, value {exact:.1f}: {kind.__name__} with num_steps={steps}: {value:.1f}")
    return round(value, 1)


values = [learn(DDPG, 1, 0.9), learn(DDPG, 3, 0.9), learn(TD3, 3, 0.9), learn(DDPG, 3, 0.99), learn(TD3, 3, 0.99)]
raise SystemExit(values != [10.0, 27.1, 10.0, 297.0, 100.0])
PYTHON

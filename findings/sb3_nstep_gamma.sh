#!/usr/bin/env bash
# Stable-Baselines3: with n_steps above 1, the discount and n_steps of the model have no effect after a load; the replay buffer brings its own.
#
# Versions: Stable-Baselines3 2.9.2, PyTorch 2.13.0, Gymnasium 1.4.0, NumPy 2.4.6.
#
# One expects that model.gamma is the discount of the targets: load() takes "extra arguments to change the model when loading", and a callback can
# raise gamma during a run. With n_steps above 1, TD3, DDPG, SAC and DQN take the powers of the discount from the samples, and the buffer has its own
# gamma and n_steps, which are copied once, at the construction of the first model. load() repeats this copy, whatever its arguments are.
# load_replay_buffer() replaces the whole buffer: a new model that begins with the data of an old run has the discount and the steps of the old run,
# and one with n_steps=3 learns from single steps if the old one had n_steps=1. With n_steps=1 everywhere, the changed gamma counts.
# Here, each step of an endless task has the reward 1, so its value is 1 / (1 - gamma): 10 for 0.9, and 2 for 0.5.
# Consequence: a comparison of discounts or n_steps from one checkpoint, or from one data set, compares equal runs, and the model reports the values
# that were asked for. After a load, set model.replay_buffer.gamma and model.replay_buffer.n_steps.
#
# Output:
#   new model, gamma 0.5, n_steps 1: learned value 2, rewards per sample 1.00
#   load(gamma=0.5, n_steps=1) of a model with 0.9 and 1: model.gamma 0.5, model.n_steps 1, learned value 2, rewards per sample 1.00
#   load(gamma=0.5, n_steps=1) of a model with 0.9 and 3: model.gamma 0.5, model.n_steps 1, learned value 10, rewards per sample 2.71
#   new model, gamma 0.5, n_steps 1, buffer of 0.9 and 3: model.gamma 0.5, model.n_steps 1, learned value 10, rewards per sample 2.71
#   new model, gamma 0.5, n_steps 3, buffer of 0.9 and 1: model.gamma 0.5, model.n_steps 3, learned value 2, rewards per sample 1.00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0
"$folder/venv/bin/pip" install -qq --no-compile stable-baselines3==2.9.2 gymnasium==1.4.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import TD3

torch.set_num_threads(1)


class Endless(gym.Env):
    """Each step has the reward 1, and no state differs from the others."""

    observation_space = action_space = gym.spaces.Box(-1, 1, (1,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), {}

    def step(self, action):
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), 1.0, False, False, {}


def make_env():
    return gym.wrappers.TimeLimit(Endless(), 50)


def create(gamma, n_steps):
    fast = {"learning_rate": 1e-2, "batch_size": 64, "tau": 0.1, "learning_starts": 100, "policy_kwargs": {"net_arch": [16]}}
    return TD3("MlpPolicy", make_env(), gamma=gamma, n_steps=n_steps, seed=0, **fast)


def learn(name, model, changed=True):
    """Let a model learn, and return the value that it has learned and the mean sum of rewards in its samples."""
    model.learn(600)
    batch = model.replay_buffer.sample(2000)
    with torch.no_grad():
        value = model.critic.q1_forward(batch.observations, batch.actions).mean().item()
    rewards = batch.rewards.median().item()
    asked = f" model.gamma {model.gamma}, model.n_steps {model.n_steps}," if changed else ""
    print(f"{name}:{asked} learned value {value:.0f}, rewards per sample {rewards:.2f}")
    return round(value), round(rewards, 2)


def load(name):
    return TD3.load(f"{name}.zip", env=make_env(), gamma=0.5, n_steps=1)


def fill(n_steps, name):
    """Return a new model with the data of an old run."""
    model = create(0.5, n_steps)
    model.load_replay_buffer(name)
    return model


for steps, name in ((1, "one"), (3, "three")):
    old = create(0.9, steps)
    old.learn(100)  # random actions, no update
    old.save(name)
    old.save_replay_buffer(name)
results = [
    learn("new model, gamma 0.5, n_steps 1", create(0.5, 1), changed=False),
    learn("load(gamma=0.5, n_steps=1) of a model with 0.9 and 1", load("one")),
    learn("load(gamma=0.5, n_steps=1) of a model with 0.9 and 3", load("three")),
    learn("new model, gamma 0.5, n_steps 1, buffer of 0.9 and 3", fill(1, "three")),
    learn("new model, gamma 0.5, n_steps 3, buffer of 0.9 and 1", fill(3, "one")),
]
raise SystemExit(results != [(2, 1.0), (2, 1.0), (10, 2.71), (10, 2.71), (2, 1.0)])
PYTHON

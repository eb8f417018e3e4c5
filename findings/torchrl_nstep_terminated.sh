#!/usr/bin/env bash
# TorchRL's n-step transforms lose the termination: all but the last of the n steps before it bootstrap from the terminal state.
#
# Versions: TorchRL 0.14.1, TensorDict 0.14.3, PyTorch 2.13.0, Gymnasium 1.4.0.
#
# One expects of an n-step transition that its flag belongs to its next observation, as in Stable-Baselines3's NStepReplayBuffer: an episode
# that terminates within the n steps gives a target without a bootstrapped value. MultiStepTransform, for replay buffers, and MultiStep, for
# collectors, sum the rewards up to the end of the episode and move the next observation to the terminal one. They leave "terminated" where it
# was, so that only the very last transition has it. TD0Estimator, the default of TorchRL's TD3, DDPG and SAC losses, looks at this flag
# alone. With a value of 100 everywhere and n = 3, two of three targets before a fall hold 100, discounted.
# Consequence: falling costs next to nothing. The value of a terminal state, which no transition ever trains, is the target of n - 1 states.
# "done_keys: left untouched by the transform" is in the documentation. done_keys=[] moves the flags too, and the targets are right.
#
# Output:
#   state:                                         0      1      2      3      4      5
#   next observation:                              3      4      5      6      6      6 (terminal: 6)
#   discounted rewards:                          2.71   2.71   2.71   2.71   1.90   1.00
#   target, MultiStepTransform:                 75.61  75.61  75.61  75.61  82.90   1.00
#   target, MultiStep:                          75.61  75.61  75.61  75.61  82.90   1.00
#   target, MultiStepTransform(done_keys=[]):   75.61  75.61  75.61   2.71   1.90   1.00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 torchrl==0.14.1 tensordict==0.14.3 gymnasium==1.4.0 numpy==2.4.6
RL_LOGGING_LEVEL=ERROR "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import numpy as np
import torch
from tensordict.nn import TensorDictModule
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.postprocs import MultiStep
from torchrl.envs import GymWrapper, MultiStepTransform
from torchrl.objectives.value import TD0Estimator

STEPS = {"n_steps": 3, "gamma": 0.9}


class Walk(gym.Env):
    """Six steps with a reward of 1, after which the episode terminates."""

    observation_space, action_space = gym.spaces.Box(0, 6, (1,)), gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.zeros(1, np.float32)
        return self.state, {}

    def step(self, action):
        self.state = self.state + 1
        return self.state, 1.0, bool(self.state[0] == 6), False, {}


def store(rollout, **settings):
    """Return what a replay buffer with the n-step transform stores."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), transform=MultiStepTransform(**STEPS, **settings))
    buffer.extend(rollout)
    return buffer[:]


def show(name, values, form, end=""):
    print(f"{name:42}" + "".join(f"{value:7{form}}" for value in values) + end)


value = TensorDictModule(lambda obs: torch.full_like(obs, 100.0), ["observation"], ["state_value"])
estimator = TD0Estimator(gamma=STEPS["gamma"], value_network=value)
rollout = GymWrapper(Walk()).rollout(12, break_when_any_done=False)
stored = store(rollout)[:6]
show("state:", stored["observation"].flatten().tolist(), ".0f")
show("next observation:", stored["next", "observation"].flatten().tolist(), ".0f", " (terminal: 6)")
show("discounted rewards:", stored["next", "reward"].flatten().tolist(), ".2f")
targets = {
    "MultiStepTransform": stored,
    "MultiStep": MultiStep(**STEPS)(rollout)[:6],
    "MultiStepTransform(done_keys=[])": store(rollout, done_keys=[])[:6],
}
for name, data in targets.items():
    targets[name] = estimator.value_estimate(data).flatten().tolist()
    show(f"target, {name}:", targets[name], ".2f")
lost, post, kept = (row[3] > 70 and row[4] > 80 and row[5] == 1 for row in targets.values())
raise SystemExit(not (lost and post and not kept))
PYTHON

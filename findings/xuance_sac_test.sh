#!/usr/bin/env bash
# XuanCe tests SAC with random actions: the test, which is documented as deterministic, samples from the policy as the training does.
#
# Versions: XuanCe 1.4.4, PyTorch 2.13.0, Gymnasium 1.2.3 (XuanCe requires one below 1.3), NumPy 1.26.4, SciPy 1.15.3.
#
# The class of the off-policy agents says that in evaluation "policy actions are executed deterministically by default", its test() that "actions are
# selected in deterministic (test) mode", and get_actions() of SAC that test_mode is "True for testing without noises". One expects the tanh of the
# mean. SAC does not read test_mode, and its policy has no way to return the mean. DDPG and TD3 do return the same action each time.
# Here, all observations are equal, so a deterministic policy has one action. An episode is one step, and its reward is minus the distance of the
# action from a target. SAC learns for 600 steps with XuanCe's configuration for Pendulum, and then plays its mean, or 1,000 episodes of its test.
# Consequence: test scores of SAC are those of its exploration, which the temperature keeps alive on purpose, and the model that is kept as the best
# may be a lucky one. The scores do not compare with those of XuanCe's TD3, or of other libraries' SAC. Subclass SAC_Agent, and return the tanh of the
# distribution's mu if test_mode is set.
#
# Output:
#   DDPG: 200 tests of one state play 1 action
#   TD3: 200 tests of one state play 1 action
#   SAC: 200 tests of one state play 200 actions, from -1.0 to 1.0
#   SAC after 600 steps: its mean is 0.25 and scores -0.05, its test plays 0.18 +- 0.52 and scores -0.44
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==1.26.4 gymnasium==1.2.3 scipy==1.15.3 pyyaml==6.0.4 tqdm==4.70.1 \
    tensorboard==2.21.0 wandb==0.31.0 pyglet==1.5.15
"$folder/venv/bin/pip" install -qq --no-compile --no-deps xuance==1.4.4
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import contextlib
import io
from argparse import Namespace

import gymnasium as gym
import numpy as np
import torch

with contextlib.redirect_stdout(io.StringIO()):  # a remark about OpenCV, which is not needed here
    from xuance import get_arguments, make_envs
    from xuance.torch.agents import REGISTRY_Agents

torch.set_num_threads(1)
torch.manual_seed(0)
np.random.seed(0)
TARGET, TESTS = 0.3, 1000


class Target(gym.Env):
    """Each episode is one step in the same state, and the reward is minus the distance of the action from a target."""

    observation_space = action_space = gym.spaces.Box(-1, 1, (1,))
    actions = []

    def __init__(self, render_mode=None):
        pass

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        Target.actions.append(float(action[0]))
        return np.ones(1, np.float32), -abs(float(action[0]) - TARGET), True, False, {}


gym.register("Target-v0", Target, max_episode_steps=20)


def create(algorithm):
    """Return an agent with XuanCe's configuration of this algorithm for Pendulum, but smaller, and a function that tests it."""
    changes = {"env_id": "Target-v0", "parallels": 1, "running_steps": 1000, "start_training": 100, "render": False, "render_mode": None}
    changes |= {"actor_hidden_size": [32], "critic_hidden_size": [32], "batch_size": 64, "training_frequency": 1}
    config = get_arguments(algorithm, "classic_control", "Pendulum-v1", parser_args=Namespace(**changes))
    agent = REGISTRY_Agents[config.agent](config, make_envs(config))

    def test(episodes):
        """Return the actions and the mean score of a test."""
        Target.actions.clear()
        scores = agent.test(test_episodes=episodes, test_envs=make_envs(config))
        return np.array(Target.actions), float(np.mean(scores))

    return agent, test


counts = {}
for algorithm in ("ddpg", "td3", "sac"):
    agent, test = create(algorithm)
    actions, _ = test(200)
    counts[algorithm] = len(set(actions))
    text = "1 action" if counts[algorithm] == 1 else f"{counts[algorithm]} actions, from {actions.min():.1f} to {actions.max():.1f}"
    print(f"{algorithm.upper()}: {len(actions)} tests of one state play {text}")
agent.train(600)
with torch.no_grad():
    outputs = agent.policy.actor_representation(np.ones((1, 1), np.float32))
    mean = float(torch.tanh(agent.policy.actor(outputs["state"]).mu))
actions, score = test(TESTS)
best = -abs(mean - TARGET)
text = f"its test plays {actions.mean():.2f} +- {actions.std():.2f} and scores {score:.2f}"
print(f"SAC after 600 steps: its mean is {mean:.2f} and scores {best:.2f}, {text}")
raise SystemExit(not (counts["ddpg"] == counts["td3"] == 1 and counts["sac"] > 190 and best > -0.1 and score < 1.5 * best - 0.05))
PYTHON

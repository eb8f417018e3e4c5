#!/usr/bin/env bash
# XuanCe's exploration ends too early by the number of parallel environments: with 10, the noise of TD3 is at its end value after a tenth of the run.
#
# Versions: XuanCe 1.4.4, PyTorch 2.13.0, Gymnasium 1.2.3 (XuanCe requires one below 1.3), NumPy 1.26.4, SciPy 1.15.3.
#
# One expects that start_noise falls to end_noise over running_steps, and start_greedy to end_greedy over decay_step_greedy, "the steps for the
# process of greedy decay". The agent divides these steps by the number of environments, as for a decay once per call of the environments. But it
# multiplies the result by its count of all environment steps, which grows by the number of environments per call. So both corrections add up.
# Here, the actor of TD3 is made to say 0, so the actions are the noise, and a wrapper around Pendulum notes them. Each run has 4,000 steps of all
# environments together, no update, and XuanCe's own values for Pendulum: noise from 0.25 to 0.05. DQN plays CartPole, with a decay over 2,000 steps.
# Consequence: `parallels`, which one sets for speed, changes the exploration. XuanCe's files for Pendulum and BipedalWalker have 10 environments, so
# nine tenths of the run explore at the end value, and a comparison of different numbers of environments compares amounts of noise too. Multiply
# running_steps or decay_step_greedy by the number of environments for the agent, and train for the steps that were meant.
#
# Output:
#   TD3, 1 environment: standard deviation of the noise in each tenth of the run 0.23 0.22 0.19 0.19 0.17 0.14 0.12 0.09 0.08 0.06
#   TD3, 4 environments: standard deviation of the noise in each tenth of the run 0.20 0.14 0.06 0.05 0.05 0.05 0.05 0.05 0.05 0.05
#   TD3, 10 environments: standard deviation of the noise in each tenth of the run 0.15 0.05 0.05 0.05 0.05 0.05 0.05 0.05 0.05 0.05
#   DQN, decay over 2000 steps: epsilon is at its end value after 2000 steps with 1 environment, and after 200 with 10
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
STEPS, DECAY = 4000, 2000


class Record(gym.ActionWrapper):
    """Note the actions that reach the environments."""

    actions = []

    def action(self, action):
        Record.actions.append(float(action[0]))
        return action


gym.register("Seen-Pendulum-v1", lambda render_mode=None: Record(gym.make("Pendulum-v1").unwrapped), max_episode_steps=200)


def create(algorithm, file, task, num_envs, **changes):
    """Return an agent with XuanCe's configuration of this algorithm for a task, which never updates its networks."""
    never = {"start_training": 10**9, "render": False, "render_mode": None}
    config = get_arguments(algorithm, "classic_control", file, parser_args=Namespace(env_id=task, parallels=num_envs, **never, **changes))
    return REGISTRY_Agents[config.agent](config, make_envs(config))


def play(num_envs):
    """Return the standard deviation of TD3's noise in each tenth of a run."""
    agent = create("td3", "Pendulum-v1", "Seen-Pendulum-v1", num_envs, running_steps=STEPS)
    assert (agent.start_noise, agent.end_noise) == (0.25, 0.05)
    last = [layer for layer in agent.policy.actor.modules() if isinstance(layer, torch.nn.Linear)][-1]
    with torch.no_grad():
        last.weight.zero_(), last.bias.zero_()
    Record.actions.clear()
    agent.train(STEPS // num_envs)
    assert len(Record.actions) == STEPS
    noise = np.std(np.reshape(Record.actions, (10, -1)), axis=1)
    name = "1 environment" if num_envs == 1 else f"{num_envs} environments"
    print(f"TD3, {name}: standard deviation of the noise in each tenth of the run", *(f"{each:.2f}" for each in noise))
    return noise


def decay(num_envs):
    """Return the number of steps after which DQN's epsilon is at its end value."""
    agent = create("dqn", "CartPole-v1", "CartPole-v1", num_envs, decay_step_greedy=DECAY)
    while agent.e_greedy > agent.end_greedy + 1e-6:
        agent.train(1)
    return int(agent.current_step)


np.random.seed(0)
one, four, ten = play(1), play(4), play(10)
single, many = decay(1), decay(10)
print(f"DQN, decay over {DECAY} steps: epsilon is at its end value after {single} steps with 1 environment, and after {many} with 10")
right = np.allclose(one, np.linspace(0.24, 0.06, 10), rtol=0.15)
early = np.allclose(ten[1:], 0.05, rtol=0.15) and np.allclose(four[3:], 0.05, rtol=0.15) and four[0] > 0.15 and ten[0] > 0.1
raise SystemExit(not (right and early and abs(single - DECAY) < 30 and abs(many - DECAY / 10) < 30))
PYTHON

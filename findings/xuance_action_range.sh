#!/usr/bin/env bash
# XuanCe never rescales the actions of its agents: Pendulum gets half of its torque, and a valve from 0 to 10 is never opened beyond 1.
#
# Versions: XuanCe 1.4.4, PyTorch 2.13.0, Gymnasium 1.2.3 (XuanCe requires one below 1.3), NumPy 1.26.4, SciPy 1.15.3.
#
# One expects that actors whose last layer is tanh reach the bounds of the action space, as in other libraries. XuanCeEnvWrapper, which make_envs
# puts around a single-agent environment, has the code for it: step() maps [-1, 1] to the bounds if the action space is a Box. Its constructor
# decides this from its own attribute _action_space, which is None at that moment, so the answer is always no. DDPG, TD3 and SAC send the tanh itself
# to the environment. Exploration of DDPG and TD3 is clipped to the true bounds. A test is not: it plays actions that are outside the action space.
# Here, the actor says -1 or 1, with XuanCe's own configuration for Pendulum, in Pendulum, whose bounds are -2 and 2, and in a valve from 0 to 10.
# Then TD3 learns to open the valve to 8. With Gymnasium's RescaleAction(env, -1, 1) around the same environment, it succeeds.
# Consequence: a part of the actions can neither be played nor learned, without an error or a warning. A run learns, but ends at a lower return. With
# smaller bounds, as in Humanoid, many outputs mean the same action. Use RescaleAction, then both ranges are equal.
#
# Output:
#   Pendulum-v1, actions from -2 to 2: DDPG plays -1 to 1, TD3 plays -1 to 1, SAC plays -1 to 1
#   Valve-v0, actions from 0 to 10: DDPG plays -1 to 1, TD3 plays -1 to 1, SAC plays -1 to 1
#   TD3 learns to open the valve to 8: it opens it to 1, with RescaleAction to 8
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
from gymnasium.wrappers import RescaleAction

with contextlib.redirect_stdout(io.StringIO()):  # a remark about OpenCV, which is not needed here
    from xuance import get_arguments, make_envs
    from xuance.torch.agents import REGISTRY_Agents

torch.set_num_threads(1)


class Valve(gym.Env):
    """A valve with a target that never changes. Each step is an episode of its own."""

    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Box(0, 10, (1,))

    def __init__(self, render_mode=None):
        pass

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), -abs(action[0] - 8), True, False, {}


class Record(gym.ActionWrapper):
    """Note the actions that reach an environment."""

    actions = []

    def action(self, action):
        Record.actions.append(np.array(action))
        return action


def record_pendulum(render_mode=None):
    return Record(gym.make("Pendulum-v1").unwrapped)


def record_valve(render_mode=None):
    return Record(Valve())


def rescale_valve(render_mode=None):
    return RescaleAction(record_valve(), -1, 1)


TASKS = {"Pendulum-v1": ("Seen-Pendulum-v1", record_pendulum), "Valve-v0": ("Seen-Valve-v0", record_valve)}
for name, function in [*TASKS.values(), ("Rescaled-Valve-v0", rescale_valve)]:
    gym.register(name, function, max_episode_steps=20)


def create(algorithm, task):
    """Return an agent with XuanCe's configuration of this algorithm for Pendulum, but smaller, and a function that tests it."""
    changes = {"env_id": task, "parallels": 1, "render": False, "render_mode": None, "running_steps": 1000, "start_training": 100}
    changes |= {"actor_hidden_size": [32], "critic_hidden_size": [32], "batch_size": 64, "training_frequency": 1}
    changes |= {"learning_rate_actor": 3e-3, "learning_rate_critic": 1e-2}
    config = get_arguments(algorithm.lower(), "classic_control", "Pendulum-v1", parser_args=Namespace(**changes))
    envs = make_envs(config)
    agent = REGISTRY_Agents[config.agent](config, envs)

    def test():
        """Play test episodes, and return the actions that reached the environment."""
        Record.actions.clear()
        agent.test(test_episodes=3, test_envs=make_envs(config))
        return np.concatenate(Record.actions)

    return agent, test


def extremes(algorithm, task):
    """Return the lowest and highest action that an actor of XuanCe plays in a test, if its last layer is saturated."""
    agent, test = create(algorithm, task)
    last = [layer for layer in agent.policy.actor.modules() if isinstance(layer, torch.nn.Linear)]
    last = last[-1] if algorithm != "SAC" else agent.policy.actor.out_mu
    found = []
    for side in (-1, 1):
        with torch.no_grad():
            last.bias.fill_(side * 50)
        found.append(float(test().mean()))
    return found


ranges = {}
for task, (name, _) in TASKS.items():
    space = gym.make(name).action_space
    ranges[task] = [extremes(algorithm, name) for algorithm in ("DDPG", "TD3", "SAC")]
    texts = [f"{key} plays {low:.0f} to {high:.0f}" for key, (low, high) in zip(("DDPG", "TD3", "SAC"), ranges[task])]
    print(f"{task}, actions from {space.low[0]:.0f} to {space.high[0]:.0f}: {', '.join(texts)}")
valves = []
for task in ("Seen-Valve-v0", "Rescaled-Valve-v0"):
    agent, test = create("TD3", task)
    agent.train(900)
    valves.append(float(test().mean()))
print(f"TD3 learns to open the valve to 8: it opens it to {valves[0]:.0f}, with RescaleAction to {valves[1]:.0f}")
limited = all(np.allclose(found, [-1, 1], atol=0.01) for task in ranges.values() for found in task)
raise SystemExit(not (limited and valves[0] < 1.01 and abs(valves[1] - 8) < 1))
PYTHON

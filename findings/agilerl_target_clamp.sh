#!/usr/bin/env bash
# TD3 of AgileRL limits its target actions to the bounds of the environment, but its actor and its critics work in [-1, 1].
#
# Versions: AgileRL 2.58.0, AgileRL-Arena 1.29.0, PyTorch 2.13.0, TensorDict 0.13.0, Gymnasium 1.4.0, NumPy 2.4.6, and what AgileRL imports.
#
# One expects the target action of TD3: the output of the target actor plus clipped noise, limited to the range of the outputs. In AgileRL the
# outputs of the actor, the actions in the replay buffer and the inputs of the critics are in [-1, 1]. Only the action of a step is rescaled to
# the bounds of the environment. The target action, which is not rescaled, is limited to these bounds. With the bounds of Humanoid, [-0.4, 0.4],
# the target critics evaluate a policy that uses at most 40% of the range. With [0, 1], the lower half of the outputs becomes 0, the middle
# of the range. With [-2, 2], the noise leads to actions outside [-1, 1], where the critics have no data. DDPG of AgileRL has the same line.
# Here, the actor always outputs the best action, and each reward for it is 1. With a discount of 0.5 and no noise, that action has the value 2.
# Consequence: the critics learn the values of another policy, and the same task with other bounds gives another result. Use the wrapper
# gymnasium.wrappers.RescaleAction(env, -1, 1) before AgileRL.
#
# Output:
#   bounds [-1.0, 1.0], seed 0: plays 1.0, output 1.0, target action 1.0, with noise 0.5 to 1.0, value 2.0
#   bounds [-1.0, 1.0], seed 1: plays 1.0, output 1.0, target action 1.0, with noise 0.5 to 1.0, value 1.9
#   bounds [-0.4, 0.4], seed 0: plays 0.4, output 1.0, target action 0.4, with noise 0.4 to 0.4, value 1.7
#   bounds [-0.4, 0.4], seed 1: plays 0.4, output 1.0, target action 0.4, with noise 0.4 to 0.4, value 1.7
#   bounds [0.0, 1.0], seed 0: plays 0.0, output -1.0, target action 0.0, with noise 0.0 to 0.0, value 1.5
#   bounds [0.0, 1.0], seed 1: plays 0.0, output -1.0, target action 0.0, with noise 0.0 to 0.0, value 1.5
#   bounds [-2.0, 2.0], seed 0: plays 2.0, output 1.0, target action 1.0, with noise 0.5 to 1.5, value 2.0
#   bounds [-2.0, 2.0], seed 1: plays 2.0, output 1.0, target action 1.0, with noise 0.5 to 1.5, value 1.9
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq torch==2.13.0
"$folder/venv/bin/pip" install -qq tensordict==0.13.0 gymnasium==1.4.0 numpy==2.4.6 accelerate==1.15.0 dill==0.4.1 fastrand==3.1.0 lazy-loader==0.6 \
    omegaconf==2.3.0 peft==0.21.2 pettingzoo==1.27.0 pillow==13.0.0 pydantic==2.14.4 wandb==0.31.0
"$folder/venv/bin/pip" install -qq --no-deps agilerl==2.58.0 agilerl-arena==1.29.0
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import numpy as np
import torch
from agilerl.algorithms.td3 import TD3
from tensordict import TensorDict

BATCH, UPDATES, DISCOUNT = 256, 300, 0.5
OBS = torch.zeros(BATCH, 1)  # there is one state


def batch(best):
    """Return random actions, whose reward grows from 0 to 1 towards the best one."""
    action = torch.rand(BATCH, 1) * 2 - 1
    parts = {"obs": OBS, "action": action, "reward": (1 + best * action) / 2, "next_obs": OBS, "done": torch.zeros(BATCH, 1)}
    return TensorDict(parts, batch_size=[BATCH])


def value(low, high, best, seed):
    """Train the critics for an actor that gives the best action, and return its value and the range of the target actions."""
    torch.manual_seed(seed)
    space = gym.spaces.Box(low, high, (1,))
    agent = TD3(gym.spaces.Box(-1, 1, (1,)), space, batch_size=BATCH, gamma=DISCOUNT, tau=0.2, lr_actor=1e-9, lr_critic=3e-3)
    for actor in (agent.actor, agent.actor_target):
        last = [layer for layer in actor.modules() if isinstance(layer, torch.nn.Linear)][-1]
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.constant_(last.bias, 5.0 * best)  # tanh(5) = 0.9999
    played = agent.get_action(np.zeros((1, 1), np.float32), training=False).item()
    seen, forward = [], agent.critic_target_1.forward
    agent.critic_target_1.forward = lambda obs, action: seen.append(action) or forward(obs, action)
    agent.learn(batch(best))  # with the default noise
    noisy = seen[-1].min().item(), seen[-1].max().item()
    for _ in range(UPDATES):
        agent.learn(batch(best), policy_noise=0.0)
    worth = agent.critic_1(OBS[:1], torch.full((1, 1), float(best))).item()
    print(f"bounds [{low}, {high}], seed {seed}: plays {played:.1f}, output {best:.1f}, target action {seen[-1].mean():.1f},", end=" ")
    print(f"with noise {noisy[0]:.1f} to {noisy[1]:.1f}, value {worth:.1f}")
    return round(seen[-1].mean().item(), 1), worth, noisy


cases = [(-1.0, 1.0, 1), (-0.4, 0.4, 1), (0.0, 1.0, -1), (-2.0, 2.0, 1)]
seen = {case: [value(*case, seed) for seed in (0, 1)] for case in cases}
right = all(abs(worth - 2) < 0.1 for _, worth, _ in seen[cases[0]])
small = all(target == 0.4 and worth < 1.8 for target, worth, _ in seen[cases[1]])
middle = all(target == 0.0 and worth < 1.6 for target, worth, _ in seen[cases[2]])
outside = all(noisy[1] > 1.3 for _, _, noisy in seen[cases[3]])
raise SystemExit(not (right and small and middle and outside))
PYTHON

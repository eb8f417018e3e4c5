#!/usr/bin/env bash
# A deep copy of a MuJoCo task continues from another state than its original, without an error.
#
# Versions: Gymnasium 1.4.0, MuJoCo 4.0.0.
#
# Planning by simulation copies an environment with copy.deepcopy and steps the copy. The classic control tasks support this. The
# MuJoCo tasks define how they are pickled through gymnasium.utils.EzPickle, and copy.deepcopy uses the same method: it constructs a
# new simulation with the arguments of the old one. The copy begins at the initial pose with velocity 0, but its wrappers keep their
# state: OrderEnforcing believes that the copy was reset, and TimeLimit has counted 20 steps. A Box2D task of Gymnasium behaves the same
# but fails at the next step, because it has no body before its first reset.
#
# Output:
#   Pendulum-v1: largest difference of the next observation 0.0, steps counted by the copy 21
#   HalfCheetah-v5: largest difference of the next observation 12.0, steps counted by the copy 21
#   Hopper-v5: largest difference of the next observation 2.0, steps counted by the copy 21
#   HalfCheetah-v5: the copy had time 0.0 and largest absolute velocity 0.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq gymnasium==1.4.0 mujoco==4.0.0 numpy==2.4.6 imageio==2.38.1 packaging==26.3
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import copy

import gymnasium as gym
import numpy as np


def play(env_id):
    env = gym.make(env_id)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(20):
        env.step(env.action_space.sample())
    return env


def difference(env_id):
    env = play(env_id)
    twin = copy.deepcopy(env)
    action = env.action_space.sample()
    largest = np.abs(env.step(action)[0] - twin.step(action)[0]).max()
    steps = twin.get_wrapper_attr("_elapsed_steps")
    print(f"{env_id}: largest difference of the next observation {largest:.1f}, steps counted by the copy {steps}")
    return largest, steps


expected = difference("Pendulum-v1") == (0, 21)
for env_id in ("HalfCheetah-v5", "Hopper-v5"):
    largest, steps = difference(env_id)
    expected &= largest > 1 and steps == 21
data = copy.deepcopy(play("HalfCheetah-v5")).unwrapped.data
print(f"HalfCheetah-v5: the copy had time {data.time} and largest absolute velocity {np.abs(data.qvel).max()}")
raise SystemExit(not (expected and data.time == 0 and (data.qvel == 0).all()))
PYTHON

#!/usr/bin/env bash
# An environment and its action space that are seeded alike draw the same numbers: the first action repeats the initial state.
#
# Versions: Gymnasium 1.4.0, MuJoCo 4.0.0, NumPy 2.4.6.
#
# `env.reset(seed=seed)` followed by `env.action_space.seed(seed)` is the usual way to seed a run. One expects two independent
# generators. Both are PCG64 with the state of the seed, and both draw uniform numbers, so the first random action is a linear function of
# the noise of the initial state. In MountainCarContinuous the car starts where the action says. In HalfCheetah the six numbers of the
# action are ten times the noise of the first six positions. The noise of the velocities is normal and takes another number of draws, so the
# correlation ends with the first action. An environment that draws noise in each step repeats it throughout.
# A pair of seed and number is no way out: default_rng([5, 0]) is default_rng(5). A spawned child of the seed is independent.
# Consequence: the first transition of each seeded run has an action that depends on the state, and statistics over first actions are biased.
#
# Output:
#   MountainCarContinuous-v0: smallest correlation of the initial position and the first action 1.0000
#   HalfCheetah-v5: smallest correlation of the initial positions and the first action 1.0000
#   HalfCheetah-v5, seed 0: position noise * 10 [0.27392 -0.46043 -0.91805 -0.96694  0.62654  0.82551]
#   HalfCheetah-v5, seed 0: first action        [0.27392 -0.46043 -0.91805 -0.96694  0.62654  0.82551]
#   default_rng([5, 0]) equals default_rng(5): True; its spawned child does: False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq gymnasium==1.4.0 mujoco==4.0.0 numpy==2.4.6 imageio==2.38.1 packaging==26.3
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import numpy as np


def starts(env_id, noise):
    """Return the noise of the initial state and the first action of 50 runs, each (50, actions)."""
    env = gym.make(env_id)
    rows = []
    for seed in range(50):
        obs, _ = env.reset(seed=seed)
        env.action_space.seed(seed)
        rows.append((noise(env.unwrapped, obs), env.action_space.sample()))
    noises, actions = (np.array(column) for column in zip(*rows))
    return noises, actions


def correlation(noises, actions):
    return min(np.corrcoef(noise, action)[0, 1] for noise, action in zip(noises.T, actions.T))


car = correlation(*starts("MountainCarContinuous-v0", lambda env, obs: obs[:1]))
print(f"MountainCarContinuous-v0: smallest correlation of the initial position and the first action {car:.4f}")
noises, actions = starts("HalfCheetah-v5", lambda env, obs: (env.data.qpos - env.init_qpos)[:6])
cheetah = correlation(noises, actions)
print(f"HalfCheetah-v5: smallest correlation of the initial positions and the first action {cheetah:.4f}")
print("HalfCheetah-v5, seed 0: position noise * 10", np.round(noises[0] * 10, 5))
print("HalfCheetah-v5, seed 0: first action       ", np.round(actions[0].astype(float), 5))
first = np.random.default_rng(5).random()
pair, child = np.random.default_rng([5, 0]).random(), np.random.default_rng(5).spawn(1)[0].random()
print(f"default_rng([5, 0]) equals default_rng(5): {pair == first}; its spawned child does: {child == first}")
raise SystemExit(not (car > 0.9999 and cheetah > 0.9999 and pair == first != child))
PYTHON

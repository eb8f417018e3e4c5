#!/usr/bin/env bash
# BipedalWalker: an episode depends on the episodes before it, even if the reset is seeded.
#
# Versions: Gymnasium 1.4.0, Box2D 2.3.10.
#
# One expects that a seeded reset begins one episode, whatever the environment did before. BipedalWalker destroys its bodies at a reset but
# keeps its Box2D world, and the world carries something over. An environment that has played other seeds differs from a new one in 18 of 30
# episodes of the same seed and actions, once from the first step on. With a new world at each reset, no episode differs. The differences
# grow to the size of the observations. Two environments with the same history agree, so a test that plays everything twice does not see it.
# LunarLander makes a new world at each reset and agrees in 30 of 30.
# Consequence: a run that continues from a checkpoint, or an evaluation in a used environment, is another one although all seeds are equal.
#
# Output:
#   BipedalWalker-v3: 18 of 30 episodes differ, largest difference of an observation 2.6
#   BipedalWalker-v3, same history: 0 of 30 episodes differ, largest difference of an observation 0.0
#   LunarLander-v3: 0 of 30 episodes differ, largest difference of an observation 0.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq gymnasium==1.4.0 Box2D==2.3.10 pygame-ce==2.5.8 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import numpy as np


def play(env, seed):
    """Return the observations of at most 200 steps with actions that depend on the seed alone."""
    rng = np.random.default_rng(seed)
    rows = [env.reset(seed=seed)[0]]
    for _ in range(200):
        obs, _, terminated, _, _ = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
        rows.append(obs)
        if terminated:
            break
    return np.array(rows)


def compare(name, make, make_other):
    """Play 30 seeds in one environment, and each seed in the other one."""
    used, different, largest = make(), 0, 0.0
    for seed in range(30):
        ours, other = play(used, seed), play(make_other(), seed)
        shared = min(len(ours), len(other))
        difference = float(np.abs(ours[:shared] - other[:shared]).max())
        different += difference > 0 or len(ours) != len(other)
        largest = max(largest, difference)
    print(f"{name}: {different} of 30 episodes differ, largest difference of an observation {largest:.1f}")
    return different


def walker():
    return gym.make("BipedalWalker-v3")


def lander():
    return gym.make("LunarLander-v3", continuous=True)


twin = walker()
walkers, twins = compare("BipedalWalker-v3", walker, walker), compare("BipedalWalker-v3, same history", walker, lambda: twin)
landers = compare("LunarLander-v3", lander, lander)
raise SystemExit(not (walkers > 5 and twins == landers == 0))
PYTHON

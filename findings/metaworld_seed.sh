#!/usr/bin/env bash
# Meta-World ignores the seed of a reset: the goal depends on how often the environment was reset.
#
# Versions: Meta-World 3.1.1, Gymnasium 1.4.0, MuJoCo 3.3.0.
#
# One expects of a Gymnasium environment that reset(seed=0) gives the same initial state each time, and reset(seed=1) another one. In
# Meta-World, a wrapper draws one of 50 goals before it passes the seed on, from a generator that only make(..., seed=...) seeds. Three
# resets with the seed 0 give three goals. New environments that are reset with 7, 8, 9, with 0, 0, 0, or without seeds have the same goals.
# Consequence: evaluations with fixed seeds play other goals each time, so the best checkpoint is partly the one with the easier goals. If
# each evaluation makes a new environment, it always plays the first goals.
#
# Output:
#   reset(seed=0) three times: 3 goals
#   new environment and seeds 7, 8, 9: the same goals True, without seeds: True
#   new environment, make(seed=1) instead of make(seed=0): the same goals False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq metaworld==3.1.1 gymnasium==1.4.0 mujoco==3.3.0 numpy==2.4.6 imageio==2.38.1 packaging==26.3
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import metaworld  # noqa: F401, registers the environments
import numpy as np


def goals(*seeds, make_seed=0):
    """Return the goal, the last three numbers of the observation, after each reset of a new environment."""
    env = gym.make("Meta-World/MT1", env_name="reach-v3", seed=make_seed)
    return np.array([env.reset(seed=seed)[0][-3:] for seed in seeds])


same = goals(0, 0, 0)
distinct = len(np.unique(same, axis=0))
print(f"reset(seed=0) three times: {distinct} goals")
others, unseeded = (np.array_equal(same, goals(*seeds)) for seeds in ((7, 8, 9), (None, None, None)))
print(f"new environment and seeds 7, 8, 9: the same goals {others}, without seeds: {unseeded}")
made = np.array_equal(same, goals(0, 0, 0, make_seed=1))
print(f"new environment, make(seed=1) instead of make(seed=0): the same goals {made}")
raise SystemExit(not (distinct == 3 and others and unseeded and not made))
PYTHON

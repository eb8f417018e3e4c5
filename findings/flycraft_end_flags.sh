#!/usr/bin/env bash
# FlyCraft ends an episode at its time limit, and after a crash, with both flags: terminated and truncated.
#
# Versions: flycraft 0.2.0, Gymnasium 1.4.0, NumPy 2.4.6.
#
# One expects of a Gymnasium environment that a time limit only truncates, and that a crash only terminates. An airplane that flies on
# until the time limit gets both flags in step 399 of 400, and the reward falls by 1. One that dives gets both flags at the ground, too.
# Other ends, such as a move away from the goal, set `terminated` alone. The observation does not contain the time.
# Consequence: no rule separates the two. Learners that look at `terminated` take the time limit for a terminal state, and those that
# bootstrap whenever `truncated` is set value the state after a crash. Only info["termination"] tells which it was.
#
# Output:
#   level flight: timeout_termination after 399 steps, terminated True, truncated True, reward -1.00
#   dive: crash_termination after 373 steps, terminated True, truncated True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq flycraft==0.2.0 gymnasium==1.4.0 numpy==2.4.6
cd "$folder" # the environment writes f16trace.csv into the working directory
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import contextlib
import os
from pathlib import Path

import flycraft
import gymnasium as gym
import numpy as np

CONFIG = Path(flycraft.__file__).parent / "configs" / "MR_for_HER.json"  # one that does not end a straight flight early


def fly(load):
    """Hold the roll rate 0, a load factor and 30% power. Return how the episode ended, its flags and the last change of the reward."""
    env, rewards = gym.make("FlyCraft-v0", config_file=str(CONFIG), disable_env_checker=True), []
    env.reset(seed=0)
    while True:
        _, reward, terminated, truncated, info = env.step(np.array([0.0, load, 0.3], np.float32))
        rewards.append(reward)
        if terminated or truncated:
            return info["termination"], len(rewards), terminated, truncated, rewards[-1] - rewards[-2]


with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # messages of the environment
    level, dive = fly(1.0), fly(0.0)
print(f"level flight: {level[0]} after {level[1]} steps, terminated {level[2]}, truncated {level[3]}, reward {level[4]:+.2f}")
print(f"dive: {dive[0]} after {dive[1]} steps, terminated {dive[2]}, truncated {dive[3]}")
seen = [level[0], *level[2:4], dive[0], *dive[2:4]]
raise SystemExit(seen != ["timeout_termination", True, True, "crash_termination", True, True] or bool(level[4] > -0.9))
PYTHON

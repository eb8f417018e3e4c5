#!/usr/bin/env bash
# The reward of highway-env's parking task has a penalty for a crash, but its compute_reward has not.
#
# Versions: highway-env 1.12.1, Gymnasium 1.4.0, NumPy 2.4.6.
#
# One expects of an environment with goals what Gymnasium-Robotics documents: the reward of a step equals compute_reward of its goals. In
# parking-v0 this holds until the car drives into a wall. That step ends the episode with a reward that is lower by 5, which compute_reward
# cannot know.
# Consequence: Hindsight Experience Replay computes the rewards of relabeled transitions with compute_reward. There, a crash costs nothing
# and ends an episode whose every other reward is negative, so the replay teaches the car to crash. Keep the difference between the stored
# reward and compute_reward of the stored goal, or set add_walls=False.
#
# Output:
#   steps before the crash: reward equals compute_reward True
#   crash: terminated True, crashed True, reward minus compute_reward -5.00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq highway-env==1.12.1 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import highway_env  # noqa: F401, registers the environments
import numpy as np

env = gym.make("parking-v0")
env.reset(seed=0)
differences, terminated, truncated = [], False, False
while not (terminated or truncated):
    obs, reward, terminated, truncated, info = env.step(np.array([1.0, 0.0]))  # straight on
    differences.append(reward - env.unwrapped.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}))
equal, last = bool(np.allclose(differences[:-1], 0)), float(differences[-1])
print(f"steps before the crash: reward equals compute_reward {equal}")
print(f"crash: terminated {terminated}, crashed {info['crashed']}, reward minus compute_reward {last:.2f}")
raise SystemExit(not (equal and terminated and info["crashed"] and abs(last + 5) < 1e-9))
PYTHON

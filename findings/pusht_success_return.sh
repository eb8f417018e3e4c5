#!/usr/bin/env bash
# gym-pusht: an agent that solves the task scores 1, and one that stops just short of it scores 299.
#
# Versions: gym-pusht 0.1.8, Gymnasium 1.4.0, pymunk 6.11.1, NumPy 2.4.6.
#
# One expects the return of PushT to be larger, the better the T-shaped block lies on its target. The reward of each step is the covered
# fraction of the target, relative to 0.95, and is never negative. A coverage above 0.95 is success and terminates the episode. So success
# ends an income of almost 1 per step, and the best return belongs to a block that stays just below 0.95 until the time limit of 300 steps.
# The scene has 512 units. A block 1 unit off is solved, for a return of 1. At 2 units it is not solved, for a return of 299. This is also
# so with the usual discount of 0.99.
# Consequence: an agent that maximizes the return learns to avoid success, and a checkpoint with a higher return can have a lower success
# rate. Select by info["is_success"], and subtract 1 from each reward for training: success is then the best.
#
# Output:
#   block 0 units off: coverage 1.00, is_success True, 1 step, return 1.0, discounted 1.0
#   block 1 units off: coverage 0.97, is_success True, 1 step, return 1.0, discounted 1.0
#   block 2 units off: coverage 0.95, is_success False, 300 steps, return 299.0, discounted 94.8
#   block 8 units off: coverage 0.79, is_success False, 300 steps, return 250.9, discounted 79.5
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq gym-pusht==0.1.8 gymnasium==1.4.0 pymunk==6.11.1 shapely==2.2.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import contextlib
import io

import gymnasium as gym
import numpy as np

with contextlib.redirect_stdout(io.StringIO()):  # a greeting
    import gym_pusht  # registers the task

CORNER = np.array([50, 50], np.float32)
env = gym.make("gym_pusht/PushT-v0")


def rest(units):
    """Return success and return of an episode in which nothing touches the block."""
    env.reset(seed=0, options={"reset_to_state": [*CORNER, 300, 300, 0]})
    task = env.unwrapped
    x, y, angle = task.goal_pose
    task.block.angle, task.block.position = angle, (x + units, y)
    rewards, ended = [], False
    while not ended:
        _, reward, terminated, truncated, info = env.step(CORNER)
        rewards.append(float(reward))
        ended = terminated or truncated
    total, discounted = sum(rewards), sum(reward * 0.99**time for time, reward in enumerate(rewards))
    print(f"block {units} units off: coverage {info['coverage']:.2f}, is_success {bool(info['is_success'])},", end=" ")
    print(f"{len(rewards)} step{'s' * (len(rewards) > 1)}, return {total:.1f}, discounted {discounted:.1f}")
    return bool(info["is_success"]), total, discounted


exact, near, short, far = [rest(units) for units in (0, 1, 2, 8)]
raise SystemExit(not (exact[0] and near[0] and near[1] == 1 and not short[0] and not far[0] and short[1] > 290 and far[2] > 50))
PYTHON

#!/usr/bin/env bash
# gym-xarm's lifting task asks for a lift of 78 cm instead of 15 cm, 13 cm more than the gripper rises in any of 9 constant directions.
#
# Versions: gym-xarm 0.1.1, MuJoCo 2.3.7, Gymnasium-Robotics 1.4.2, Gymnasium 1.4.0, NumPy 2.4.6.
#
# One expects that XarmLift is solved, and ends, when the cube is 15 cm above its starting position. The cube's height in the observation and
# in the test of success is relative to the table's center, which is at 0.64 m. The target is the starting height plus 0.15 m, with a starting
# height in the coordinates of the world. It is 0.72 m above the table's center, and the cube starts 7 cm below that. A gripper that moves up
# for a whole episode, in each of 9 directions, rises to 65 cm above the cube's starting height. The reward for a lifted cube has the same
# error: it begins at 0.57 m above the table's center. A cube that hangs 15 or 60 cm above its starting position has a lower reward than one
# on the table, because the arm is farther away.
# Consequence: a policy that lifts the cube by 15 cm never has is_success, and its episodes do not terminate. The reward only teaches to come near to the cube and
# to close the gripper. Judge a policy by the rise of observation[8], the height of the cube.
#
# Output:
#   cube  0 cm above its start: reward -0.0022, terminated False, is_success False
#   cube 15 cm above its start: reward -0.0047, terminated False, is_success False
#   cube 60 cm above its start: reward -0.0176, terminated False, is_success False
#   cube 79 cm above its start: reward 0.6931, terminated True, is_success True
#   is_success from 78 cm above the start, the gripper's highest point in 9 episodes of 300 steps: 65 cm
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq gym-xarm==0.1.1 mujoco==2.3.7 gymnasium-robotics==1.4.2 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import itertools

import gymnasium as gym
import gym_xarm  # registers the task
import mujoco
import numpy as np

env = gym.make("gym_xarm/XarmLift-v0", obs_type="state")
task = env.unwrapped
HAND, CUBE = 2, 8  # heights in the observation


def hanging(rise):
    """Put the cube above its starting position and return the end of the next step."""
    start = env.reset(seed=0)[0][CUBE]
    task.data.joint("object_joint0").qpos[2] += rise
    mujoco.mj_forward(task.model, task.data)
    obs, reward, terminated, _, info = env.step(np.zeros(4, np.float32))
    print(f"cube {100 * rise:2.0f} cm above its start: reward {reward:.4f}, terminated {terminated}, is_success {info['is_success']}")
    assert abs(obs[CUBE] - start - rise) < 0.01
    return reward, bool(terminated and info["is_success"])


results = [hanging(rise) for rise in (0, 0.15, 0.6, 0.79)]
highest = -np.inf
for x, y in itertools.product((-1, 0, 1), repeat=2):
    start, ended, steps = env.reset(seed=0)[0][CUBE], False, 0
    while not ended:
        obs, _, terminated, truncated, _ = env.step(np.array([x, y, 1, 0], np.float32))
        highest, ended, steps = max(highest, obs[HAND] - start), terminated or truncated, steps + 1
needed = task.z_target - start
print(f"is_success from {100 * needed:.0f} cm above the start, the gripper's highest point in 9 episodes of {steps} steps: {100 * highest:.0f} cm")
lower = results[0][0] > results[1][0] > results[2][0]
raise SystemExit(not (lower and [solved for _, solved in results] == [False, False, False, True] and highest < needed - 0.1))
PYTHON

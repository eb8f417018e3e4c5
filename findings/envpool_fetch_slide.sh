#!/usr/bin/env bash
# EnvPool's FetchSlide puts the robot 35 cm too close to the far end of the table, so every fifth goal hangs in the air behind it.
#
# Versions: EnvPool 1.2.5, Gymnasium-Robotics 1.4.2, MuJoCo 3.10.0, Gymnasium 1.4.0, NumPy 2.4.6.
#
# EnvPool's documentation says that it mirrors the Fetch tasks of Gymnasium-Robotics, which documents a gripper that begins at x = 1 m, and
# whose goals are on the table. EnvPool sets the base to slide0 = 0.4049 m, as in the other three Fetch tasks; FetchSlide has 0.05 m there.
# The gripper begins at 1.38 m. Puck and goals are sampled around it, but the table stays where it is and ends at 1.95 m, so goals reach
# 2.08 m, at the height of the table. For 13% of the goals, even the very edge is farther away than the tolerance of 5 cm. FetchSlide-v1 and
# the dense tasks have the same base. The grippers of the other three tasks begin within 2 cm of the original ones.
# Consequence: at the end of an episode, a perfect agent has reached at most about 87% of the goals, and one that was trained in one library
# meets other positions in the other, while ids, shapes and spaces are equal. Pass initial_slide0=0.05; then all goals are on the table.
#
# Output:
#   Gymnasium-Robotics: the gripper begins at x = 1.01 m, goals up to x = 1.71 m, 0.0% behind the table's end at 1.95 m, 0.0% out of reach
#   EnvPool, FetchSlide-v4: the gripper begins at x = 1.38 m, goals up to x = 2.08 m, 20.5% behind the table's end at 1.95 m, 13.0% out of reach
#   EnvPool, initial_slide0=0.05: the gripper begins at x = 0.99 m, goals up to x = 1.69 m, 0.0% behind the table's end at 1.95 m, 0.0% out of reach
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile envpool==1.2.5 gymnasium-robotics==1.4.2 mujoco==3.10.0 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import envpool
import gymnasium as gym
import gymnasium_robotics
import numpy as np

gym.register_envs(gymnasium_robotics)
TOLERANCE = 0.05  # of the goal, in m
original = gym.make("FetchSlide-v4")
model = original.unwrapped.model
table = model.geom_bodyid.tolist().index(model.body("table0").id)
edge = model.body("table0").pos[0] + model.geom_pos[table, 0] + model.geom_size[table, 0]
surface = model.body("table0").pos[2] + model.geom_pos[table, 2] + model.geom_size[table, 2]


def envpool_resets(**options):
    """Return the initial observations of 200 environments in EnvPool."""
    return envpool.make_gymnasium("FetchSlide-v4", num_envs=200, seed=0, **options).reset()[0]


def original_resets():
    """Return the initial observations of 100 seeds in Gymnasium-Robotics."""
    resets = [original.reset(seed=seed)[0] for seed in range(100)]
    return {key: np.stack([obs[key] for obs in resets]) for key in resets[0]}


def describe(name, obs):
    """Print where the gripper begins and where the goals are. Return the position, and the shares of the goals behind the table and out of reach."""
    begin, goal = obs["observation"][:, 0].mean(), obs["desired_goal"]
    assert (abs(goal[:, 2] - surface) < 0.03).all()  # all at the height of the table
    behind, lost = (goal[:, 0] > edge).mean(), (goal[:, 0] > edge + TOLERANCE).mean()
    shares = f"{behind:.1%} behind the table's end at {edge:.2f} m, {lost:.1%} out of reach"
    print(f"{name}: the gripper begins at x = {begin:.2f} m, goals up to x = {goal[:, 0].max():.2f} m, {shares}")
    return begin, behind, lost


begin, behind, lost = describe("Gymnasium-Robotics", original_resets())
assert abs(begin - 1) < 0.03 and behind == 0
copy_begin, copy_behind, copy_lost = describe("EnvPool, FetchSlide-v4", envpool_resets())
_, fixed_behind, _ = describe("EnvPool, initial_slide0=0.05", envpool_resets(initial_slide0=0.05))
raise SystemExit(not (copy_begin - begin > 0.3 and copy_behind > 0.15 and copy_lost > 0.1 and fixed_behind == 0))
PYTHON

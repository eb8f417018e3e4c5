#!/usr/bin/env bash
# panda-gym's stacking task is solved by two cubes that lie on the table, 8 cm apart.
#
# Versions: panda-gym 3.0.7, PyBullet 3.2.7, Gymnasium 1.4.0, NumPy 2.4.6.
#
# One expects that PandaStack terminates with is_success when the second cube is on the first one. The goal is both positions in one vector
# of 6 numbers, and success is a distance of less than 10 cm in these 6 dimensions. The cubes have edges of 4 cm, so the goal of the upper
# cube is only 4 cm above the table. Both cubes on the table, 6 cm to the left and to the right of their goals, are 9.4 cm away. Side by
# side, they are 4.9 cm away, which would also pass the 5 cm of the other tasks. Some episodes are solved by the random initial positions,
# and end after one step without an action.
# Consequence: pushing is enough. A policy with a success rate of 100% may never have lifted a cube, and one that does nothing is above 0.
# Judge a policy by the height of the second cube, observation["achieved_goal"][5], which is 0.06 on a stack and 0.02 on the table.
#
# Output:
#   cubes on the table, 0 cm between them: heights 0.02 and 0.02 m, reward 0, terminated True, is_success True
#   cubes on the table, 8 cm between them: heights 0.02 and 0.02 m, reward 0, terminated True, is_success True
#   cubes on the table, 10 cm between them: heights 0.02 and 0.02 m, reward -1, terminated False, is_success False
#   400 episodes without an action: 14 end in step 1 as a success
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq panda-gym==3.0.7 pybullet==3.2.7 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON' | grep -v '^argv' # which PyBullet prints
import gymnasium as gym
import numpy as np
import panda_gym  # registers the tasks

env = gym.make("PandaStack-v3")
simulator, still = env.unwrapped.sim, np.zeros(4, np.float32)


def flat(gap):
    """Put both cubes on the table, on two sides of their goals, and return the end of the next step."""
    obs, _ = env.reset(seed=1)
    offset, upright = np.array([0.02 + gap / 2, 0, 0]), np.array([0.0, 0, 0, 1])
    goal = obs["desired_goal"][:3].astype(float)
    simulator.set_base_pose("object1", goal - offset, upright)
    simulator.set_base_pose("object2", goal + offset, upright)
    obs, reward, terminated, _, info = env.step(still)
    heights = obs["achieved_goal"][[2, 5]]
    print(f"cubes on the table, {100 * gap:.0f} cm between them: heights {heights[0]:.2f} and {heights[1]:.2f} m,", end=" ")
    print(f"reward {reward + 0.0:.0f}, terminated {terminated}, is_success {info['is_success']}")
    return bool(terminated and info["is_success"] and heights.max() < 0.025)


results = flat(0.0), flat(0.08), flat(0.1)
solved = 0
for seed in range(400):
    env.reset(seed=seed)
    solved += bool(env.step(still)[2])
print(f"400 episodes without an action: {solved} end in step 1 as a success")
raise SystemExit(not (results == (True, True, False) and solved > 0))
PYTHON

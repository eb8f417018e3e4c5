#!/usr/bin/env bash
# Crazyflow seeds the drone at a reset, but not the goal.
#
# Versions: crazyflow 0.4.0, jax 0.10.1, Gymnasium 1.4.0, NumPy 2.4.6.
#
# One expects of a Gymnasium environment, also of a vector of them, that reset(seed=0) fixes the initial observations. In Crazyflow's
# ReachPosEnv, the seed fixes the position and the velocity of each drone. The goals come from another key, which the constructor draws
# from a generator that is not seeded yet, and no reset changes it. So a goal depends on the process and on the number of resets.
# Consequence: evaluations with fixed seeds fly to other goals each time, and two runs with the same seed differ from the first step.
#
# Output:
#   reset(seed=0) twice: the same drones True, the same goals False
#   reset(seed=0) of a new environment: the same drones True, the same goals False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq crazyflow==0.4.0 jax==0.10.1 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
from crazyflow.envs import ReachPosEnv  # before other packages that import SciPy
import numpy as np


def start(envs):
    """Return the positions and velocities of the drones, and their goals, after a reset with the seed 0."""
    obs = {name: np.asarray(part) for name, part in envs.reset(seed=0)[0].items()}
    return np.hstack([obs["pos"], obs["vel"]]), obs["pos"] + obs["difference_to_goal"]


envs = ReachPosEnv(num_envs=2)
first, second, other = start(envs), start(envs), start(ReachPosEnv(num_envs=2))
seen = []
for name, again in (("reset(seed=0) twice", second), ("reset(seed=0) of a new environment", other)):
    drones, goals = np.array_equal(first[0], again[0]), np.allclose(first[1], again[1])
    print(f"{name}: the same drones {drones}, the same goals {goals}")
    seen += [drones, not goals]
raise SystemExit(not all(seen))
PYTHON

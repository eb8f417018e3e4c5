#!/usr/bin/env bash
# robosuite's Gymnasium wrapper ignores the seed of a reset, changes NumPy's global generator instead, and calls the time limit a termination.
#
# Versions: robosuite 1.5.2, Gymnasium 1.4.0, MuJoCo 3.3.0.
#
# One expects of a Gymnasium environment that reset(seed=0) gives the same state each time. GymWrapper.reset(seed=...) calls np.random.seed,
# but the tasks draw from a generator of their own, which only robosuite.make(..., seed=...) seeds. Five resets with the seed 0 give five
# positions of the cube. The global generator, which other code of the program draws from, returns to the same numbers at each reset.
# One also expects a time limit to be a truncation. Lift ends only at its horizon, and the wrapper returns it as terminated.
# Consequence: evaluations on fixed seeds play other episodes each time, while everything that draws from np.random repeats itself after each
# of them. A learner that trusts the flags learns that the value of the last state of each episode is 0.
#
# Output:
#   reset(seed=0) five times: 5 positions of the cube, 1 number of np.random
#   new environments from make(seed=0), five times: 1 position of the cube
#   end of an episode with horizon=10: step 10, terminated True, truncated False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq robosuite==1.5.2 gymnasium==1.4.0 mujoco==3.3.0 numpy==1.26.4 h5py==3.16.0
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import contextlib
import io

import numpy as np

with contextlib.redirect_stdout(io.StringIO()):
    import robosuite
    from robosuite.wrappers import GymWrapper

OPTIONS = {"has_renderer": False, "has_offscreen_renderer": False, "use_camera_obs": False, "horizon": 10}


def lift(**settings):
    """Return a new environment in which a Panda robot lifts a cube."""
    with contextlib.redirect_stdout(io.StringIO()):
        return GymWrapper(robosuite.make("Lift", robots="Panda", **OPTIONS, **settings), keys=["object-state"])


def start(env):
    """Return the position of the cube after reset(seed=0), and the next number of the global generator."""
    return *env.reset(seed=0)[0][:3], np.random.random()


def distinct(rows):
    return len(np.unique(np.array(rows), axis=0))


env = lift()
used = np.array([start(env) for _ in range(5)])
cubes, numbers = distinct(used[:, :3]), distinct(used[:, 3:])
print(f"reset(seed=0) five times: {cubes} positions of the cube, {numbers} number of np.random")
made = distinct([start(lift(seed=0))[:3] for _ in range(5)])
print(f"new environments from make(seed=0), five times: {made} position of the cube")
ended, step = (False, False), 0
while not any(ended):
    ended, step = env.step(np.zeros(env.action_space.shape))[2:4], step + 1
print(f"end of an episode with horizon=10: step {step}, terminated {ended[0]}, truncated {ended[1]}")
raise SystemExit(not (cubes == 5 and numbers == made == 1 and step == 10 and ended == (True, False)))
PYTHON

#!/usr/bin/env bash
# A step of controlgym returns the observation from before the action, so a controller that is fed with observations is always one step late.
#
# Versions: controlgym 1.0.0, PyTorch 2.13.0, Gymnasium 0.29.1 (controlgym's pin), NumPy 1.26.4, SciPy 1.17.1.
#
# One expects that step() applies the action and returns what the sensors measure after it, as in Gymnasium, whose Env is the base class. All
# environments of controlgym measure first, and then move the state. So the first step repeats the observation of the reset, whatever the action was,
# and the last state of an episode is never observed. info["state"] is the new state, so info and observation of one step are of different times.
# The reward is the cost of the old state. The docstring of the PDEs gives the observation as C * state + noise, without saying of which state. The
# package's own PPO is late as well: it stores the observation as the next one, and selects the next action from it.
# Here, no task has noise, and the wave has a sensor at each grid point, so C is the identity, and the observation should be the state. The package's
# optimal LQR controller calms the wave if it gets the state, and keeps it going if it gets the observation.
# Consequence: tasks are partially observed even with all sensors and no noise, and results of learners that see observations do not compare with
# those of the package's LQR, which sees states. Return env.C @ info["state"] instead, and add the noise of the sensors.
#
# Output:
#   ac1: an action of 1 changes the state by 0.26, and the observation of its step by 0.00, which is the observation of the reset
#   wave: an action of 1 changes the state by 1.00, and the observation of its step by 0.00, which is the observation of the reset
#   burgers: an action of 1 changes the state by 0.08, and the observation of its step by 0.00, which is the observation of the reset
#   wave, LQR with the observation: return -211.3, size of the last state 2.22
#   wave, LQR with info["state"]: return -13.2, size of the last state 0.00
#   wave, LQR with env.C @ info["state"]: return -13.2, size of the last state 0.00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==1.26.4
"$folder/venv/bin/pip" install -qq --no-compile controlgym==1.0.0 gymnasium==0.29.1 scipy==1.17.1 matplotlib==3.11.2 numpy==1.26.4
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import warnings

import controlgym
import numpy as np
from controlgym.controllers import LQR

warnings.resetwarnings()  # the import makes every warning an error, and the linear tasks warn with Python 3.11 and newer
warnings.simplefilter("ignore")
QUIET = {"ac1": {"noise_cov": 0.0}, "wave": {"sensor_noise_cov": 0.0}, "burgers": {"sensor_noise_cov": 0.0}}


def step(env, size):
    """Return the observation of a reset, and the observation and the state of a step with an action of this size."""
    first, _ = env.reset(seed=0)
    obs, _, _, _, info = env.step(np.full(env.n_action, size))
    return first, obs, info["state"]


def control(name, env, measure):
    """Play an episode with the LQR controller, which gets what `measure` returns. Return the sum of the rewards and the size of the last state."""
    controller = LQR(env)
    obs, info = env.reset(seed=0)
    total = 0
    for _ in range(env.n_steps):
        obs, reward, _, _, info = env.step(controller.select_action(measure(obs, info)))
        total += reward
    size = np.linalg.norm(info["state"])
    print(f"wave, LQR with {name}: return {total:.1f}, size of the last state {size:.2f}")
    return total, size


late = True
for name, changes in QUIET.items():
    env = controlgym.make(name, **changes)
    (first, idle, still), (_, acted, moved) = step(env, 0.0), step(env, 1.0)
    state, seen = np.abs(moved - still).max(), np.abs(acted - idle).max()
    late = late and state > 0.01 and seen == 0 and np.array_equal(acted, first)
    text = "which is the observation of the reset" if np.array_equal(acted, first) else "which is not the observation of the reset"
    print(f"{name}: an action of 1 changes the state by {state:.2f}, and the observation of its step by {seen:.2f}, {text}")
env = controlgym.make("wave", n_state=20, n_observation=20, **QUIET["wave"])
assert np.array_equal(env.C, np.eye(20))
observed = control("the observation", env, lambda obs, info: obs)
known = control('info["state"]', env, lambda obs, info: info["state"])
repaired = control('env.C @ info["state"]', env, lambda obs, info: env.C @ info["state"])
raise SystemExit(not (late and np.allclose(known, repaired) and known[1] < 0.01 and observed[1] > 1 and observed[0] < 5 * known[0]))
PYTHON

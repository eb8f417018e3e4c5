#!/usr/bin/env bash
# target-gym's environments for Gymnasium do not compile their JAX code, so a step takes several times as long as the same step in jax.jit.
#
# Versions: target-gym 0.6.1, Gymnasium 1.3.0, JAX 0.10.2 on the CPU.
#
# One expects that a simulator written in JAX, whose Gymnasium class is provided by the package, runs compiled. GymnasiumPlane calls
# `step_env` and `is_truncated` directly. Inner parts are compiled, but the rest of a step is dispatched one operation at a time.
# Consequence: training for 100,000 steps spends minutes in the environment. A class that wraps `step_env` with fixed parameters in
# jax.jit has the same transitions.
#
# Output (a busy core of an AMD EPYC; the numbers vary, the ratio less):
#   GymnasiumPlane: 313 steps per second of CPU time, compiled: 2122, largest difference of an observation, relative: 7e-05
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq target-gym==0.6.1 gymnasium==1.3.0 six==1.17.0 gymnax==1.0.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import time

import jax
import numpy as np
from target_gym import GymnasiumPlane

STEPS = 400
env = GymnasiumPlane()
task, params, key = env.jax_env, env.env_params, jax.random.PRNGKey(0)
compiled = jax.jit(lambda state, action: task.step_env(key, state, action, params))
actions = np.random.default_rng(0).uniform(-0.2, 0.2, (STEPS, 2)).astype(np.float32)


def measure(step):
    """Return the observations of one episode, and the steps per second after the first step."""
    observations = [step(actions[0])]
    start = time.process_time()
    observations += [step(action) for action in actions[1:]]
    return np.array(observations), (STEPS - 1) / (time.process_time() - start)


def step_compiled(action):
    """Advance the state that the environment holds."""
    obs, env.state, *_ = compiled(env.state, action)
    return np.array(obs)


env.reset(seed=0)
plain, slow = measure(lambda action: env.step(action)[0])
env.reset(seed=0)
same, fast = measure(step_compiled)
difference = np.max(np.abs(plain - same) / (1 + np.abs(plain)))
print(
    f"GymnasiumPlane: {slow:.0f} steps per second of CPU time, compiled: {fast:.0f}, "
    f"largest difference of an observation, relative: {difference:.0e}"
)
raise SystemExit(not (fast > 3 * slow and difference < 1e-2))
PYTHON

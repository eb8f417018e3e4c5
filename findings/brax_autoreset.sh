#!/usr/bin/env bash
# A batch of 4 Brax environments knows 4 initial states for ever: the automatic reset does not sample.
#
# Versions: Brax 0.14.2, JAX 0.10.2.
#
# brax.envs.create adds an automatic reset by default, and Brax's own PPO and SAC train with it. One expects each episode to begin at a new
# draw of the initial distribution, as in Gymnasium's vector environments. The wrapper stores the state of the first reset and returns to
# it at the end of every episode. In 40 episodes of 4 environments, each episode begins at the same state as its first one, bit for bit.
# The task draws a new state for each key, so 40 resets with 40 keys begin at 40 states.
# Consequence: the number of environments is the number of training tasks. With few environments, a randomized goal, start or domain is
# drawn that often in the whole run; the policy learns these draws, and an evaluation that samples shows a gap that looks like overfitting.
#
# Output:
#   40 episodes of 4 environments, automatic reset: 4 initial states
#   40 resets with 40 keys: 40 initial states
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq brax==0.14.2 jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 jaxopt==0.8.5 mujoco==3.17.0 mujoco-mjx==3.17.0 \
  numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import contextlib
import io

import jax
import numpy as np

with contextlib.redirect_stdout(io.StringIO()):  # optional simulators that are not installed
    from brax.envs import create

envs = create("inverted_pendulum", backend="spring", episode_length=15, batch_size=4)
state = jax.jit(envs.reset)(jax.random.PRNGKey(0))
step, starts = jax.jit(envs.step), []
while len(starts) < 40:
    state = step(state, np.zeros((4, 1)))
    starts.extend(np.asarray(state.obs)[np.asarray(state.done) == 1])
automatic = len(np.unique(starts, axis=0))
print(f"{len(starts)} episodes of 4 environments, automatic reset: {automatic} initial states")

env = create("inverted_pendulum", backend="spring", auto_reset=False)
keys = jax.random.split(jax.random.PRNGKey(0), 40)
sampled = len(np.unique(np.asarray(jax.jit(jax.vmap(lambda key: env.reset(key).obs))(keys)), axis=0))
print(f"40 resets with 40 keys: {sampled} initial states")
raise SystemExit(not (automatic == 4 and sampled == 40))
PYTHON

#!/usr/bin/env bash
# target-gym's Gymnasium wrapper starts every episode in the same state, unless each reset has a seed of its own.
#
# Versions: target-gym 0.6.1, Gymnasium 1.3.0, JAX 0.10.2.
#
# One expects what Gymnasium documents: a run is seeded in its first reset, and later resets without a seed go on with the generator of the
# environment. The wrapper of target_gym.gym_wrapper_factory keeps the key of the seed and never splits it, so 20 resets after
# reset(seed=0) draw one altitude and one target. 20 resets with 20 seeds draw 20. Gymnasium's Pendulum draws a new state in each of them.
# Consequence: a program that seeds a run once, as training loops do, learns one initial state and one target of the plane. The evaluation
# in the same environment repeats this episode and reports a good score with no spread; other seeds show the gap.
#
# Output:
#   target-gym Plane, reset(seed=0) and 19 resets without a seed: 1 initial states
#   target-gym Plane, 20 resets with 20 seeds: 20 initial states
#   Gymnasium Pendulum-v1, reset(seed=0) and 19 resets without a seed: 20 initial states
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq target-gym==0.6.1 gymnax==1.0.1 gymnasium==1.3.0 jax==0.10.2 jaxlib==0.10.2 six==1.17.0 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import numpy as np
from target_gym import GymnasiumPlane


def starts(env, seeds):
    """Return the number of different initial observations."""
    return len(np.unique([env.reset(seed=seed)[0] for seed in seeds], axis=0))


once, each = [0] + [None] * 19, range(20)
plane, seeded, pendulum = starts(GymnasiumPlane(), once), starts(GymnasiumPlane(), each), starts(gym.make("Pendulum-v1"), once)
print(f"target-gym Plane, reset(seed=0) and 19 resets without a seed: {plane} initial states")
print(f"target-gym Plane, 20 resets with 20 seeds: {seeded} initial states")
print(f"Gymnasium Pendulum-v1, reset(seed=0) and 19 resets without a seed: {pendulum} initial states")
raise SystemExit(not (plane == 1 and seeded == pendulum == 20))
PYTHON

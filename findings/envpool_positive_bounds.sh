#!/usr/bin/env bash
# EnvPool declares the observations of its Box2D and dm_control tasks as positive, so a wrapper that rescales them returns a constant.
#
# Versions: EnvPool 1.2.5, Gymnasium 1.4.0, NumPy 2.4.6, Python 3.11.
#
# One expects bounds that contain the observations, as in Gymnasium's own LunarLander (-2.5 to 2.5 and so on), or infinite ones, as in
# EnvPool's HalfCheetah. A part without declared bounds has the smallest positive number of its type as its lower bound, 1e-38 in float32
# and 2e-308 in float64, instead of the most negative one. This concerns LunarLander, BipedalWalker and the tasks of dm_control.
# Consequence: nearly no observation is in its space. np.clip to the bounds sets all negative numbers to 0. Gymnasium's RescaleObservation
# refuses infinite bounds, but accepts these, and every observation becomes -1: an agent trains on a constant, without an error. Do not use
# the bounds of these spaces; normalize with running statistics instead.
#
# Output:
#   LunarLanderContinuous-v3: lower bound 1.2e-38; of 8000 observations 4 are in their space; rescaled: from -1.0 to -1.0
#   BipedalWalker-v3: lower bound 1.2e-38; of 8000 observations 0 are in their space; rescaled: from -1.0 to -1.0
#   CheetahRun-v1, velocity: lower bound 2.2e-308; of 8000 observations 1 are in their space
#   WalkerWalk-v1, velocity: lower bound 2.2e-308; of 8000 observations 13 are in their space
#   HalfCheetah-v5: lower bound -inf; of 8000 observations 8000 are in their space
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq envpool==1.2.5 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import envpool
import numpy as np
from gymnasium.wrappers.vector import RescaleObservation

ENVS, STEPS = 8, 1000


def observations(envs):
    """Return the observations (8000, size) of random actions, or those with the name velocity."""
    space, rng = envs.single_action_space, np.random.default_rng(0)
    seen = [envs.reset()[0]]
    while len(seen) < STEPS:
        seen.append(envs.step(rng.uniform(space.low, space.high, (ENVS, *space.shape)).astype(space.dtype))[0])
    return np.concatenate([each["velocity"] if isinstance(each, dict) else each for each in seen])


def compare(name):
    """Print the bound and what it contains. Return whether the bound is positive and excludes nearly all observations."""
    envs = envpool.make_gymnasium(name, num_envs=ENVS, seed=0)
    space, is_dict = envs.single_observation_space, hasattr(envs.single_observation_space, "spaces")
    part = space["velocity"] if is_dict else space
    seen = observations(envs)
    inside = sum(part.contains(each) for each in seen)
    text = f"{name}{', velocity' if is_dict else ''}: lower bound {part.low.min():.1e}; of {len(seen)} observations {inside} are in their space"
    is_wrong = 0 < part.low.min() < 1e-37 and inside < len(seen) / 100
    if is_wrong and not is_dict:
        rescaled = observations(RescaleObservation(envpool.make_gymnasium(name, num_envs=ENVS, seed=0), -1, 1))
        text += f"; rescaled: from {rescaled.min()} to {rescaled.max()}"
        is_wrong = rescaled.min() == rescaled.max() == -1
    print(text)
    return is_wrong


names = ["LunarLanderContinuous-v3", "BipedalWalker-v3", "CheetahRun-v1", "WalkerWalk-v1", "HalfCheetah-v5"]
raise SystemExit([compare(name) for name in names] != [True, True, True, True, False])
PYTHON

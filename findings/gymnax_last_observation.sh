#!/usr/bin/env bash
# The last observation of an episode in gymnax's Gymnasium wrapper is the first one of another episode.
#
# Versions: gymnax 1.0.1, Gymnasium 1.3.0, JAX 0.10.2.
#
# One expects that the step that ends an episode returns the state that this step has led to, as Gymnasium's API says: a learner bootstraps
# from it when the time limit has ended the episode. GymnaxToGymWrapper steps gymnax's environment, which resets itself in the same step, and
# returns the observation after that reset. Its own reset then draws another state, so the returned one belongs to no episode that is played.
# A pendulum turns by at most 8 rad/s * 0.05 s = 0.4 rad per step. In the last steps it turns by up to half a circle. The state that the step
# has led to is in info["final_observation"]. The vector wrapper of the package does the same.
# Consequence: after each time limit, the value of an unrelated state is bootstrapped. Nothing fails, and short episodes suffer the most.
#
# Output:
#   20 episodes, largest turn of a step before the last one: at most 0.4 rad True
#   last step: more than 0.4 rad in 20 of 20 episodes, with info["final_observation"] in 0 of 20
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq gymnax==1.0.1 gymnasium==1.3.0 jax==0.10.2 jaxlib==0.10.2 six==1.17.0 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnax
import numpy as np
from gymnax.wrappers.gym import GymnaxToGymWrapper


def turn(before, after):
    """Return the angle in rad between two observations, which are cosine, sine and speed."""
    one, other = (np.arctan2(obs[1], obs[0]) for obs in (before, after))
    return abs((other - one + np.pi) % (2 * np.pi) - np.pi)


env = GymnaxToGymWrapper(gymnax.make("Pendulum-v1")[0])
within, last, final = [], [], []
for seed in range(20):
    obs, _ = env.reset(seed=seed)
    truncated = False
    while not truncated:
        before = np.asarray(obs)
        obs, _, _, truncated, info = env.step(np.zeros(1, np.float32))
        if not truncated:
            within.append(turn(before, np.asarray(obs)))
    last.append(turn(before, np.asarray(obs)))
    final.append(turn(before, np.asarray(info["final_observation"])))
possible = max(within) < 0.401
jumps, jumps_final = (int((np.array(turns) > 0.401).sum()) for turns in (last, final))
print(f"20 episodes, largest turn of a step before the last one: at most 0.4 rad {possible}")
print(f'last step: more than 0.4 rad in {jumps} of 20 episodes, with info["final_observation"] in {jumps_final} of 20')
raise SystemExit(not (possible and jumps > 10 and jumps_final == 0))
PYTHON

#!/usr/bin/env bash
# simglucose's Gymnasium environment repeats one and the same day in every episode, whatever the seed.
#
# Versions: simglucose 0.2.11, Gymnasium 0.29.1, NumPy 2.2.6, SciPy 1.15.3.
#
# One expects that each reset draws a new day, and that reset(seed=...) fixes it. In T1DSimGymnaisumEnv, the constructor draws the hour of
# the start, the meals, the first glucose level and the noise of the sensor. A reset starts the same day again, with the same noise, and
# ignores its seed. Only the constructor's argument `seed` has an effect.
# Consequence: an agent learns one day by heart, and the standard deviation over its evaluation episodes is 0. A new environment has
# another day, so the policy is tested on one day that it has never seen.
#
# Output:
#   resets with the seeds 1, 2, 3 of one environment: the same 200 measurements and meals True
#   resets with the seed 1 of three environments: the same False
#   constructor's seed 5 and resets with the seeds 1 and 2: the same True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq simglucose==0.2.11 gymnasium==0.29.1 numpy==2.2.6 scipy==1.15.3 setuptools==80.9.0
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import numpy as np
from simglucose.envs import T1DSimGymnaisumEnv

BASAL = np.array([0.01], np.float32)  # units of insulin per minute


def new(**settings):
    return T1DSimGymnaisumEnv(patient_name="adolescent#002", **settings)


def day(env, seed):
    """Return the measurements of glucose and the meals of an episode with a constant basal rate."""
    rows = [(env.reset(seed=seed)[0][0], 0.0)]
    for _ in range(200):
        obs, _, terminated, _, info = env.step(BASAL)
        rows.append((obs[0], info["meal"]))
        if terminated:
            break
    return rows


env = new()
one = [day(env, seed) for seed in (1, 2, 3)]
several = [day(new(), 1) for _ in range(3)]
seeded = [day(new(seed=5), seed) for seed in (1, 2)]
same = [all(rows == days[0] for rows in days) for days in (one, several, seeded)]
print(f"resets with the seeds 1, 2, 3 of one environment: the same 200 measurements and meals {same[0]}")
print(f"resets with the seed 1 of three environments: the same {same[1]}")
print(f"constructor's seed 5 and resets with the seeds 1 and 2: the same {same[2]}")
raise SystemExit(same != [True, False, True])
PYTHON

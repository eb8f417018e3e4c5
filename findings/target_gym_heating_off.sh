#!/usr/bin/env bash
# In target-gym's building, a heater that is never on scores more than the tuned PID controller.
#
# Versions: target-gym 0.6.1, Gymnasium 1.3.0, JAX 0.10.2.
#
# One expects of a heating task in winter (5 degrees outside on average) that no heating is a bad policy. The people, the appliances and the
# sun keep the building near its target: over the ten recorded seeds, the constant action -1 has a mean return of 379, and the PID controller
# whose returns come with the package 378. No episode is terminated. Random actions end at 35 degrees after about a fifth of an episode.
# Consequence: a learned policy with the return of the PID controller may have learned to do nothing. Compare with a constant
# action first.
#
# Output:
#   mean return over 10 seeds: heater off 379.2, recorded PID 377.7, recorded MPC 401.0; steps of an episode 720
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq target-gym==0.6.1 gymnax==1.0.1 gymnasium==1.3.0 jax==0.10.2 jaxlib==0.10.2 six==1.17.0 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import numpy as np
from target_gym.provenance import load_recorded_baselines
from target_gym.registry import REGISTRY
from target_gym.runners.runners import rollout

spec, recorded = REGISTRY["hvac"], load_recorded_baselines()["hvac"]
episodes = [rollout(spec, spec.make_test_params(), lambda obs: np.array([-1.0]), seed=seed)[2] for seed in range(10)]
off = np.mean([np.sum(rewards) for rewards in episodes])
pid, mpc = np.mean(recorded["pid_returns"]), np.mean(recorded["mpc_returns"])
steps = {len(rewards) for rewards in episodes}
print(f"mean return over 10 seeds: heater off {off:.1f}, recorded PID {pid:.1f}, recorded MPC {mpc:.1f}; ", end="")
print(f"steps of an episode {', '.join(map(str, steps))}")
raise SystemExit(not (bool(off > pid) and steps == {720}))
PYTHON

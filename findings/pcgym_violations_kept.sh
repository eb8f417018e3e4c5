#!/usr/bin/env bash
# pc-gym's evaluation charges a policy with the constraint violations of the episodes and policies before it.
#
# Versions: pcgym 0.1.8, CasADi 3.8.2, JAX 0.10.2, Gymnasium 1.4.0, NumPy 2.4.6.
#
# get_rollouts and plot_rollout play several policies, and return the states "x", the rewards "r" and the constraint violations "g" of each, which one
# plots side by side. One expects g to belong to its policy. An environment has one array of violations, which it passes in info["cons_info"], makes in
# its constructor, writes at a violation and never clears: a reset keeps it, and so does a step without a violation. All policies are played in one
# environment. Here a hot reactor breaks the limit of 326 K in 28 of 30 states, and a cold one never exceeds its initial 325 K.
# Consequence: a policy without a violation is reported with those of the policy that was listed before it, and repetitions add up likewise. The order
# of a dictionary decides which controller looks safe. In training, info["cons_info"] shows violations of past episodes. The states in "x" and the
# rewards are right: one counts from these, or evaluates each policy, with reps=1, in a call of its own.
#
# Output:
#   hot: violations by g [28, 28], by the temperature [28, 28]
#   cold, after hot: violations by g [28, 28], by the temperature [0, 0]
#   cold: violations by g [0, 0], by the temperature [0, 0]
#   hot, after cold: violations by g [28, 28], by the temperature [28, 28]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile casadi==3.8.2 jax==0.10.2 jaxlib==0.10.2 diffrax==0.7.2 equinox==0.13.8 do-mpc==5.1.2 gymnasium==1.4.0 \
    matplotlib==3.11.2 numpy==2.4.6
"$folder/venv/bin/pip" install -qq --no-compile --no-deps pcgym==0.1.8
JAX_PLATFORMS=cpu MPLBACKEND=Agg MPLCONFIGDIR=$folder "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import numpy as np
from pcgym import make_env

STEPS, LIMIT = 30, 326.0
TASK = {
    "N": STEPS,
    "tsim": 15.0,
    "SP": {"Ca": np.full(STEPS + 1, 0.85)},
    "o_space": {"low": np.array([0.7, 300, 0.8]), "high": np.array([1, 350, 0.9])},
    "a_space": {"low": np.array([295.0]), "high": np.array([302.0])},
    "x0": np.array([0.8, 325, 0.85]),
    "model": "cstr",
    "constraints": {"T": [LIMIT]},
    "cons_type": {"T": ["<="]},
    "done_on_cons_vio": False,
    "r_penalty": False,
}


class Constant:
    """A policy with one action, in the interface that the evaluation asks for."""

    def __init__(self, action):
        self.action = np.array([action])

    def predict(self, obs, deterministic=True):
        return self.action, None


POLICIES = {"hot": Constant(1.0), "cold": Constant(-1.0)}


def evaluate(*names):
    """Evaluate the policies in this order. Return the numbers of violations by g and by the temperature."""
    _, data = make_env(TASK).get_rollouts({name: POLICIES[name] for name in names}, reps=2)
    counts = []
    for number, name in enumerate(names):
        reported = (data[name]["g"][0, :, 0] > 0).sum(axis=0).tolist()
        real = (data[name]["x"][1] >= LIMIT).sum(axis=0).tolist()
        print(f"{name}{f', after {names[0]}' * number}: violations by g {reported}, by the temperature {real}")
        counts.append((reported, real))
    return counts


first, second = evaluate("hot", "cold"), evaluate("cold", "hot")
right = first[0] == second[1] == ([28, 28], [28, 28]) and second[0] == ([0, 0], [0, 0])
raise SystemExit(not (right and first[1] == ([28, 28], [0, 0])))
PYTHON

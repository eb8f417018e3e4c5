#!/usr/bin/env bash
# pc-gym ends each episode after its first step if it should end at a violated constraint, even if no constraint is violated.
#
# Versions: pcgym 0.1.8, CasADi 3.8.2, JAX 0.10.2, Gymnasium 1.4.0, NumPy 2.4.6.
#
# The documentation says that done_on_cons_vio allows an episode to end if a constraint is violated. The check of the constraints sets the flag of the
# end to this setting, whatever it has found. So with True, the first step terminates; with False, an episode never ends early. A limit of 1000 K,
# far above the 330 K that the reactor reaches, shows it. The penalty r_penalty follows the check and is right.
# Consequence: training ends all episodes after one step, without an error: an agent learns the best single step, and as the state after it is marked
# as terminal, nothing about the later ones. Returns seem good, since a return has one term instead of 29. Episodes of the same length do not tell a
# violation from none. done_on_cons_vio=False, and a wrapper that terminates at the first violation that the states show, does what it should.
#
# Output:
#   no constraint: 29 steps, return -0.019, highest temperature 330.0 K
#   T <= 1000 K, done_on_cons_vio=False: 29 steps, return -0.019, highest temperature 330.0 K
#   T <= 1000 K, done_on_cons_vio=True: 1 step, return -0.001, highest temperature 330.0 K
#   T <= 325 K, done_on_cons_vio=False: 29 steps, return -2000.019, highest temperature 330.0 K
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

STEPS = 30
TASK = {
    "N": STEPS,
    "tsim": 15.0,
    "SP": {"Ca": np.full(STEPS + 1, 0.85)},
    "o_space": {"low": np.array([0.7, 300, 0.8]), "high": np.array([1, 350, 0.9])},
    "a_space": {"low": np.array([295.0]), "high": np.array([302.0])},
    "x0": np.array([0.8, 330, 0.85]),
    "model": "cstr",
    "normalise_a": False,
    "normalise_o": False,
}


def play(name, **settings):
    """Play an episode with coolant of 300 K. Return its number of steps and the highest temperature."""
    env = make_env(TASK | settings)
    obs, _ = env.reset()
    steps, total, highest, done = 0, 0.0, obs[1], False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(np.array([300.0]))
        steps, total, highest, done = steps + 1, total + float(reward), max(highest, obs[1]), terminated or truncated
    print(f"{name}: {steps} step{'s' * (steps > 1)}, return {total:.3f}, highest temperature {highest:.1f} K")
    return steps, float(highest)


def limited(limit, end):
    constraint = {"constraints": {"T": [limit]}, "cons_type": {"T": ["<="]}, "done_on_cons_vio": end, "r_penalty": True}
    return play(f"T <= {limit:.0f} K, done_on_cons_vio={end}", **constraint)


free = play("no constraint")
never, ends, violated = limited(1000.0, False), limited(1000.0, True), limited(325.0, False)
raise SystemExit(not (free == never == violated and free[0] == STEPS - 1 and ends[0] == 1 and free[1] < 1000))
PYTHON

#!/usr/bin/env bash
# pc-gym draws an uncertain parameter for each episode and shows it to the agent, but simulates the nominal value.
#
# Versions: pcgym 0.1.8, CasADi 3.8.2, JAX 0.10.2, Diffrax 0.7.2, Gymnasium 1.4.0, NumPy 2.4.6.
#
# With uncertainty_percentages={"k0": 0.5}, each reset draws the rate constant of the reactor from +-50%, and appends it to the observation. One expects
# the reactor of the episode to have it. A reset first builds the simulator, from an environment of its own with a model of its own, and then writes
# the drawn value into the other model, which nothing simulates. This holds for both integrators. A percentage of the initial state works.
# The test plays one and the same input in each episode; the last lines are nominal environments with a model that has the given k0.
# Consequence: a policy that was trained or tested under uncertain parameters has met none: an apparent robustness to +-50% is that of the nominal plant,
# although a reactor with another k0 may end 60 K hotter, and the observation has an entry without any meaning. A new environment for each episode, with
# custom_model=cstr(k0=...), simulates what it should.
#
# Output:
#   casadi: observed k0 [7.55e+10, 8.75e+10, 7.94e+10], final temperature [324.5, 324.5, 324.5] K
#   jax: observed k0 [7.55e+10, 8.75e+10, 7.94e+10], final temperature [324.5, 324.5, 324.5] K
#   casadi: model with k0 [3.6e+10, 7.2e+10, 8.75e+10], final temperature [319.0, 324.5, 380.6] K
#   jax: model with k0 [3.6e+10, 7.2e+10, 8.75e+10], final temperature [319.0, 324.5, 380.6] K
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
from pcgym.model_classes import cstr

STEPS = 30
NOMINAL = {
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
UNCERTAIN = {
    "uncertainty_percentages": {"k0": 0.5},
    "uncertainty_bounds": {"low": np.array([3e10]), "high": np.array([1.1e11])},
}


def play(env):
    """Return the first observation and the final temperature of an episode with coolant of 300 K."""
    first, _ = env.reset()
    done = False
    while not done:
        obs, _, done, *_ = env.step(np.array([300.0]))
    return first, round(float(obs[1]), 1)


def show(name, values, temperatures):
    texts = ", ".join(f"{value:.3g}" for value in values)
    print(f"{name} [{texts}], final temperature {temperatures} K")
    return temperatures


drawn, given = [], []
for method in ("casadi", "jax"):
    np.random.seed(0)  # the library draws from NumPy's global generator
    env = make_env(NOMINAL | UNCERTAIN | {"integration_method": method})
    episodes = [play(env) for _ in range(3)]
    drawn.append(show(f"{method}: observed k0", [first[-1] for first, _ in episodes], [end for _, end in episodes]))
for method in ("casadi", "jax"):
    constants = [3.6e10, 7.2e10, 8.75e10]
    plants = [make_env(NOMINAL | {"custom_model": cstr(k0=k0), "integration_method": method}) for k0 in constants]
    given.append(show(f"{method}: model with k0", constants, [play(env)[1] for env in plants]))
ignored = all(len(set(ends)) == 1 and ends[0] == right[1] for ends, right in zip(drawn, given, strict=True))
raise SystemExit(not (ignored and all(np.ptp(right) > 40 for right in given)))
PYTHON

#!/usr/bin/env bash
# SustainGym's charging environment multiplies the caller's action by 32, and each of its observations becomes the last one.
#
# Versions: SustainGym 0.1.7, ACN-Sim 0.3.3, Gymnasium 0.28.1 (SustainGym's pin), CVXPY 1.7.5, scikit-learn 1.9.1, pandas 2.3.3, NumPy 1.26.4.
#
# One expects a step to leave the action unchanged and to return an observation of its own. EVChargingEnv with project_action_in_env=False
# (which requires no convex solver) scales the action to amperes in place: an action in [0, 1] is in [0, 32] after the step. reset and step return
# the same arrays each time, so a later step changes all earlier observations. With the projection, only the observations change.
# Gymnasium's check_env reports nothing. SyncVectorEnv copies the observations, but it gives each environment a view of the batch of actions.
# Consequence: a loop that stores (obs, action, reward, next_obs) after the step learns from states that equal their next state and from actions
# that are out of bounds. A loop with a SyncVectorEnv learns from such actions, too. Copy the action before the step and the observation after it.
# The wrappers ClipAction and FlattenObservation of Gymnasium create copies, too.
#
# Output:
#   caltech: 50 transitions with 1 different states, next state equal to state in 50, actions times 32
#   jpl: 50 transitions with 1 different states, next state equal to state in 50, actions times 32
#   caltech, with copying wrappers: 50 transitions with 50 different states, next state equal to state in 0, actions times 1
#   jpl, with copying wrappers: 50 transitions with 50 different states, next state equal to state in 0, actions times 1
#   caltech, SyncVectorEnv: actions times 32
#   jpl, SyncVectorEnv: actions times 32
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq sustaingym==0.1.7 gymnasium==0.28.1 pettingzoo==1.24.3 acnportal==0.3.3 cvxpy==1.7.5 scikit-learn==1.9.1 \
    pandas==2.3.3 numpy==1.26.4 pytz==2026.6 requests==2.34.2
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import numpy as np
from gymnasium.wrappers import ClipAction, FlattenObservation
from sustaingym.envs.evcharging import EVChargingEnv, RealTraceGenerator

STEPS = 50


def make(site, copies=False):
    env = EVChargingEnv(RealTraceGenerator(site, ("2019-05-01", "2019-08-31")), project_action_in_env=False)
    return ClipAction(FlattenObservation(env)) if copies else env


def stored(site, copies):
    """Store the transitions of random actions, and return what they contain."""
    env = make(site, copies)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    buffer, sampled = [], []
    for _ in range(STEPS):
        action = env.action_space.sample()
        sampled.append(action.copy())
        next_obs, reward, *_ = env.step(action)
        buffer.append((obs, action, reward, next_obs))
        obs = next_obs
    flat = [[np.concatenate([np.ravel(part) for part in (one.values() if isinstance(one, dict) else [one])]) for one in (t[0], t[3])] for t in buffer]
    states = len({here.tobytes() for here, _ in flat})
    still = sum(np.array_equal(here, there) for here, there in flat)
    scale = float(np.max([t[1] for t in buffer]) / np.max(sampled))
    print(f"{site}{', with copying wrappers' if copies else ''}: {STEPS} transitions with {states} different states,", end=" ")
    print(f"next state equal to state in {still}, actions times {scale:.0f}")
    return states, still, round(scale)


def vector(site):
    """Return the factor by which a vector environment changes the batch of actions."""
    envs = gym.vector.SyncVectorEnv([lambda: make(site)] * 2)
    envs.reset(seed=[0, 1])
    envs.action_space.seed(0)
    actions = envs.action_space.sample()
    before = actions.copy()
    envs.step(actions)
    scale = float(actions.max() / before.max())
    print(f"{site}, SyncVectorEnv: actions times {scale:.0f}")
    return round(scale)


wrong = [stored(site, False) for site in ("caltech", "jpl")] == [(1, STEPS, 32)] * 2
right = [stored(site, True) for site in ("caltech", "jpl")] == [(STEPS, 0, 1)] * 2
raise SystemExit(not (wrong and right and [vector(site) for site in ("caltech", "jpl")] == [32, 32]))
PYTHON

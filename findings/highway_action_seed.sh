#!/usr/bin/env bash
# highway-env forgets the seed of its action space at the first reset: random actions differ in every run.
#
# Versions: highway-env 1.12.1, Gymnasium 1.4.0.
#
# One expects that env.action_space.seed(0) makes env.action_space.sample() reproducible, as in Gymnasium's own environments. Each reset of
# highway-env defines its spaces anew, with generators that nothing has seeded. Three runs that seed the action space and the first reset
# take three series of random actions. With the seed after each reset, all runs agree, and so they do with a copy of the space.
# Consequence: a run whose warm-up samples from env.action_space is not reproducible although every seed is set, and an action space that was
# stored before the reset is another object than the one that is seeded after it. Only the warm-up differs, so the cause is hard to see.
#
# Output:
#   highway-env parking-v0: 3 different series of actions in 3 runs, the action space is the same object after a reset: False
#   highway-env parking-v0, seeded after the reset: 1
#   Gymnasium Pendulum-v1: 1 different series of actions in 3 runs, the action space is the same object after a reset: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq highway-env==1.12.1 gymnasium==1.4.0 pygame-ce==2.5.8 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import highway_env  # noqa: F401, registers the environments
import numpy as np


def actions(env_id, after_reset=False):
    """Return five random actions of a new environment, and whether a reset keeps the action space."""
    env = gym.make(env_id)
    before = env.unwrapped.action_space
    env.action_space.seed(0)
    env.reset(seed=0)
    if after_reset:
        env.action_space.seed(0)
    return [env.action_space.sample() for _ in range(5)], env.unwrapped.action_space is before


def series(env_id, **settings):
    """Return the number of different series in three runs, and whether a reset keeps the action space."""
    runs = [actions(env_id, **settings) for _ in range(3)]
    return len(np.unique([np.ravel(taken) for taken, _ in runs], axis=0)), runs[0][1]


parking, seeded, pendulum = series("parking-v0"), series("parking-v0", after_reset=True), series("Pendulum-v1")
text = "different series of actions in 3 runs, the action space is the same object after a reset:"
print(f"highway-env parking-v0: {parking[0]} {text} {parking[1]}")
print(f"highway-env parking-v0, seeded after the reset: {seeded[0]}")
print(f"Gymnasium Pendulum-v1: {pendulum[0]} {text} {pendulum[1]}")
raise SystemExit(not (parking == (3, False) and seeded[0] == 1 and pendulum == (1, True)))
PYTHON

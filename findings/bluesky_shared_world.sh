#!/usr/bin/env bash
# All environments of BlueSky-Gym in a process fly the same aircraft, and a reset after a time limit goes on with the old one.
#
# Versions: BlueSky-Gym 0.2.0, BlueSky 1.1.1, Gymnasium 1.4.0, NumPy 2.2.6.
#
# One expects that two environments are independent, and that a reset begins a new episode. BlueSky is one simulator per process, and
# DescentEnv uses its first aircraft. The environment deletes this aircraft only when an episode terminates, and a reset adds one behind it.
# So a second environment starts where the first one is, and each step of one moves the aircraft of the other. After a time limit, which is a
# truncation, the next episode starts at the altitude where the last one ended. The seed has no effect on either.
# Consequence: an evaluation in an environment of its own moves the aircraft of the training. Every episode after a truncation is the
# continuation of the last one.
#
# Output:
#   4 episodes with a time limit of 3 steps: 3 of 3 start at the altitude where the last one ended
#   second environment: starts at the altitude of the first one True
#   2 steps of the second environment move the aircraft of the first one: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-deps bluesky-gym==0.2.0 bluesky-simulator==1.1.1 bluesky-navdata==1.0.0 gymnasium==1.4.0 \
  stable-baselines3==2.9.2 # which bluesky-gym imports
"$folder/venv/bin/pip" install -qq numpy==2.2.6 cloudpickle==3.1.3 farama-notifications==0.0.6 typing-extensions==4.16.0 \
  matplotlib==3.11.2 msgpack==1.2.4 openap==2.6.2 pandas==3.1.1 scipy==1.17.1 pyzmq==27.3.0 pygame-ce==2.5.8 pyyaml==6.0.4 torch==2.13.0
cd "$folder"
HOME=$folder "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import contextlib
import io

import gymnasium as gym
import numpy as np

with contextlib.redirect_stdout(io.StringIO()):
    import bluesky_gym

bluesky_gym.register_envs()


def make(**settings):
    """Return a new environment, without the messages of the simulator."""
    with contextlib.redirect_stdout(io.StringIO()):
        return gym.make("DescentEnv-v0", **settings)


def altitude(env):
    """Return the altitude of the last observation in m."""
    return float(env.unwrapped.altitude)


def climb(env, steps):
    """Climb, and return the altitude."""
    for _ in range(steps):
        env.step(np.array([1.0]))
    return altitude(env)


env, starts, ends = make(max_episode_steps=3), [], []
for seed in range(4):
    env.reset(seed=seed)
    starts.append(altitude(env))
    ends.append(climb(env, 3))
continued = sum(start == end for start, end in zip(starts[1:], ends[:-1]))
print(f"4 episodes with a time limit of 3 steps: {continued} of 3 start at the altitude where the last one ended")
one, other = make(), make()
one.reset(seed=0)
before = climb(one, 2)
other.reset(seed=1)
shared = altitude(other) == before
moved = climb(other, 2)
print(f"second environment: starts at the altitude of the first one {shared}")
print(f"2 steps of the second environment move the aircraft of the first one: {climb(one, 1) > moved > before}")
raise SystemExit(not (continued == 3 and shared and climb(one, 0) > moved > before))
PYTHON

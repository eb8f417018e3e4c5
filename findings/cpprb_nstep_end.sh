#!/usr/bin/env bash
# cpprb's n-step buffer bootstraps at a fall, since its done flag misses the last of the n steps, and from a made-up state at a time limit.
#
# Versions: cpprb 11.0.0, NumPy 2.4.6.
#
# The documentation replaces the next observation by that n steps later, and done by a flag that is set if one of the n steps is done. The flag
# leaves out the last of them. A window that ends with the terminal step, and so has the terminal state as its next one, is stored as not done.
# Before each fall, one target of n holds the value of the terminal state, which no transition ever trains.
# on_episode_end() stores the last n - 1 steps of an episode "properly". One expects them to have the last observation as the next one. They have
# ones in all places, whatever was added: the cache of the last steps is created full of ones, and next observations never enter it. After a
# fall, done hides this. After a time limit, which is not done, the target of these steps is the value of a state of ones. "Users can always
# multiply fixed gamma ** N" is also wrong there: these windows have fewer than n steps, and no number says how many.
# PrioritizedReplayBuffer stores the same.
# Here, each step has the reward 1, the discount is 0.9 and n = 3. The value is 10 for each state from 10 on, which is right for a task without
# a fall, and 0 for the state 1, which the task does not have. The targets are those of the example in the documentation.
# Consequence: falling costs too little, and the end of each truncated episode is trained on a state that may not exist. Compute the n-step sums
# before add() instead.
#
# Output:
#   state:                          10     11     12     13     14     15
#   fall at 16, next state:         13     14     15     16      1      1
#   fall at 16, done:                0      0      0      0      1      1
#   fall at 16, target:          10.00  10.00  10.00  10.00   1.90   1.00
#   fall at 16, right target:    10.00  10.00  10.00   2.71   1.90   1.00
#   limit at 16, next state:        13     14     15     16      1      1
#   limit at 16, done:               0      0      0      0      0      0
#   limit at 16, target:         10.00  10.00  10.00  10.00   1.90   1.00
#   limit at 16, right target:   10.00  10.00  10.00  10.00  10.00  10.00
#   done flags of 100 falls that mark a next state of 16, n = 2: 0 of 100, n = 3: 0 of 100, n = 5: 0 of 100
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile cpprb==11.0.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

GAMMA, FIRST, LAST = 0.9, 10, 16


def record(falls, steps=3, episodes=1, kind=ReplayBuffer):
    """Return what the buffer stores of some episodes, each with the states from 10 to 16."""
    shapes = {"obs": {}, "rew": {}, "next_obs": {}, "done": {}}
    nstep = {"size": steps, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}
    buffer = kind(1000, shapes, Nstep=nstep)
    for _ in range(episodes):
        for state in range(FIRST, LAST):
            buffer.add(obs=state, rew=1.0, next_obs=state + 1, done=float(falls and state + 1 == LAST))
        buffer.on_episode_end()
    return {name: column.ravel() for name, column in buffer.get_all_transitions().items()}


def right_target(state, falls):
    """Return the target of three steps."""
    steps = min(3, LAST - state)
    bootstrap = 0 if falls and state + steps == LAST else GAMMA**steps * 10
    return sum(GAMMA**step for step in range(steps)) + bootstrap


def show(name, values, form):
    print(f"{name:27}" + "".join(f"{value:7{form}}" for value in values))


show("state:", range(FIRST, LAST), ".0f")
targets = {}
for name, falls in (("fall", True), ("limit", False)):
    rows = record(falls)
    assert rows["obs"].tolist() == list(range(FIRST, LAST))
    value = np.where(rows["next_obs"] >= FIRST, 10.0, 0.0)
    target = rows["rew"] + (1 - rows["done"]) * GAMMA**3 * value
    right = [right_target(state, falls) for state in range(FIRST, LAST)]
    show(f"{name} at {LAST}, next state:", rows["next_obs"], ".0f")
    show(f"{name} at {LAST}, done:", rows["done"], ".0f")
    show(f"{name} at {LAST}, target:", target, ".2f")
    show(f"{name} at {LAST}, right target:", right, ".2f")
    targets[name] = np.abs(target - right) > 0.01
    others = record(falls, kind=PrioritizedReplayBuffer)
    assert all(np.array_equal(rows[key], others[key]) for key in rows)
marked = {}
for steps in (2, 3, 5):
    rows = record(True, steps, episodes=100)
    ends = rows["next_obs"] == LAST
    marked[steps] = int(rows["done"][ends].sum()), int(ends.sum())
counts = ", ".join(f"n = {steps}: {one} of {all_ends}" for steps, (one, all_ends) in marked.items())
print(f"done flags of 100 falls that mark a next state of {LAST}, {counts}")
wrong = [targets["fall"].tolist(), targets["limit"].tolist()]
raise SystemExit(wrong != [[False] * 3 + [True] + [False] * 2, [False] * 4 + [True] * 2] or set(marked.values()) != {(0, 100)})
PYTHON

#!/usr/bin/env bash
# rliable ignores random_state: the confidence intervals of the scores come from the global generator of NumPy, whatever state is passed.
#
# Versions: rliable 1.2.0, arch 7.2.0, NumPy 2.4.6, SciPy 1.17.1, pandas 2.3.3 (arch 7 does not import with pandas 3).
#
# The documentation of get_interval_estimates and StratifiedBootstrap says of random_state: "If specified, ensures reproducibility in
# uncertainty estimates." One expects the same interval from the same RandomState, as the bootstrap of arch, the base class, gives it.
# get_interval_estimates passes the state on and arch keeps it, but rliable's two subclasses draw the runs and tasks with np.random.choice.
# So the interval depends on what the process drew from np.random before, and the call moves np.random on for everything after it. It is the
# same for a bootstrap over runs, over runs and tasks, and for two algorithms that are compared. There is no error, and the only warning is
# that of arch, which prefers another keyword for the same state.
# Here, algorithm A is ahead of B by so much that the lower bound of the difference of their interquartile means is close to 0.
# Consequence: a published interval cannot be had again from its random_state. In a close case, the same scores and the same random_state
# say that A is better in one process and that it is undecided in another. Call np.random.seed before each estimate instead.
#
# Output:
#   arch, the base class: the same random_state repeats the interval: yes
#   runs: the same random_state repeats the interval: no, another one after the same np.random.seed: yes
#   runs and tasks: the same random_state repeats the interval: no, another one after the same np.random.seed: yes
#   probability of improvement: the same random_state repeats the interval: no, another one after the same np.random.seed: yes
#   draws from the random_state that was passed: none, from np.random: some
#   A better than B, the same random_state after 10 seeds of np.random: 5 times yes, 5 times undecided
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile rliable==1.2.0 arch==7.2.0 numpy==2.4.6 scipy==1.17.1 pandas==2.3.3
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import numpy as np
from arch.bootstrap import IIDBootstrap
from numpy.random import RandomState
from rliable import library, metrics

rng = np.random.default_rng(0)
a, b = rng.normal(0.895, 1, (5, 6)), rng.normal(0, 1, (5, 6))  # scores of five runs in six tasks


def iqm(scores):
    return np.array([metrics.aggregate_iqm(scores)])


def lead(one, two):
    return iqm(one) - iqm(two)


def improvement(one, two):
    return np.array([metrics.probability_of_improvement(one, two)])


def interval(state, scores, func, **settings):
    """Return the bounds that rliable estimates with this random_state."""
    return library.get_interval_estimates({"scores": scores}, func, random_state=state, **settings)[1]["scores"].ravel()


def position(state):
    return state.get_state()[1].tolist(), state.get_state()[2]


def word(flag):
    return "yes" if flag else "no"


base = [IIDBootstrap(a, random_state=RandomState(1)).conf_int(iqm, 200, method="percentile") for _ in range(2)]
right = np.array_equal(*base)
print("arch, the base class: the same random_state repeats the interval:", word(right))
same, other = [], []
for name, scores, func, settings in (
    ("runs", a, iqm, {"reps": 200}),
    ("runs and tasks", a, iqm, {"reps": 200, "task_bootstrap": True}),
    ("probability of improvement", [a[:, :2], b[:, :2]], improvement, {"reps": 100}),
):
    bounds = []
    for seed, state in (3, 1), (4, 1), (4, 2):
        np.random.seed(seed)
        bounds.append(interval(RandomState(state), scores, func, **settings))
    same.append(np.array_equal(bounds[0], bounds[1]))
    other.append(np.array_equal(bounds[1], bounds[2]))
    print(f"{name}: the same random_state repeats the interval: {word(same[-1])},", end=" ")
    print("another one after the same np.random.seed:", word(other[-1]))
passed, shared = RandomState(1), np.random.mtrand._rand
before = position(passed), position(shared)
interval(passed, a, iqm, reps=10)
drawn = [old != position(state) for old, state in zip(before, (passed, shared))]
texts = ["some" if flag else "none" for flag in drawn]
print(f"draws from the random_state that was passed: {texts[0]}, from np.random: {texts[1]}")
better = 0
for seed in range(10):
    np.random.seed(seed)  # stands for what a process drew before
    better += interval(RandomState(1), [a, b], lead, reps=2000)[0] > 0
print(f"A better than B, the same random_state after 10 seeds of np.random: {better} times yes, {10 - better} times undecided")
raise SystemExit(not (right and not any(same) and all(other) and drawn == [False, True] and 0 < better < 10))
PYTHON

#!/usr/bin/env bash
# pycma: the seed 0 means a random seed, and the seed of one search is set in NumPy's global generator, for all of them and the environment.
#
# Versions: cma 4.5.0, NumPy 2.4.6.
#
# Policy search and tuning with CMA-ES begin a row of runs at seed 0. One expects seed 0 to be as repeatable as seed 1, and a search
# to draw from a generator of its own, as objects with a seed do in NumPy, SciPy and Gymnasium. Seed 0 takes the clock, so two runs of seed 0
# differ. Any other seed is passed to numpy.random.seed when the search is constructed: numbers that other code draws from the global
# generator afterwards no longer depend on the seed of that code. A second search in the same process continues neither of both streams:
# the population of the first one changes, because a search with another seed was constructed beside it.
# Consequence: the run of seed 0 cannot be repeated, and environments or noise that use numpy.random become equal across the seeds of a study.
#
# Output:
#   two searches with seed 0 draw the same population: False, with seed 1: True
#   numpy.random after seeds 100 and 200 and a search with seed 1 is the same: True
#   the population of seed 1 is the same with a search of seed 2 beside it: False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq cma==4.5.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import cma
import numpy as np


def search(seed):
    return cma.CMAEvolutionStrategy([0.0, 0.0], 1.0, {"seed": seed, "verbose": -9})


def equal(ours, other):
    return bool(np.array_equal(ours, other))


zero, one = (equal(search(seed).ask(), search(seed).ask()) for seed in (0, 1))
print(f"two searches with seed 0 draw the same population: {zero}, with seed 1: {one}")

noises = []
for seed in (100, 200):
    np.random.seed(seed)
    search(1)
    noises.append(np.random.rand(3))
noise = equal(*noises)
print(f"numpy.random after seeds 100 and 200 and a search with seed 1 is the same: {noise}")

alone = search(1).ask()
first, _ = search(1), search(2)
beside = equal(alone, first.ask())
print(f"the population of seed 1 is the same with a search of seed 2 beside it: {beside}")
raise SystemExit(not (not zero and one and noise and not beside))
PYTHON

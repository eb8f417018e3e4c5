#!/usr/bin/env bash
# A Minari dataset changes uint8 observations: a picture of labels comes back with labels that no step had.
#
# Versions: Minari 0.5.4, h5py 3.16.0, Pillow 13.0.0, JAX 0.10.2 (Minari's collector requires it).
#
# One expects a dataset to return the arrays that were stored. Minari stores each Box(0, 255, uint8) space of 32 x 32 or more as JPEG, in
# HDF5 too, because it counts as a photograph. Segmentations, occupancy maps and depth in bytes have the same space. Here, label 0 is
# floor, 100 a wall, 101 a ball of 3 x 3 pixels. The dataset keeps 3% of the ball, and it holds 57 labels that do not exist.
# A stack of 4 frames as (4, 84, 84) is exact, because its first axis is short; one frame of (84, 84) is not. Same space, same numbers, but
# 31 x 31 pixels: exact. DataCollector(jpeg_encoding=False) is exact for all of them; the default is True.
# Consequence: a policy trained from the dataset sees other observations than the environment gives.
#
# Output:
#   64 x 64: 3 labels stored, 60 read, 3% of the ball's pixels kept
#   31 x 31: 3 labels stored, 3 read, 100% of the ball's pixels kept
#   64 x 64, jpeg_encoding=False: 3 labels stored, 3 read, 100% of the ball's pixels kept
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq minari==0.5.4 h5py==3.16.0 pillow==13.0.0 jax==0.10.2 jaxlib==0.10.2 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/datasets" 2>/dev/null <<'PYTHON'
import os
import sys

import gymnasium as gym
import minari
import numpy as np

os.environ["MINARI_DATASETS_PATH"] = sys.argv[1]
FLOOR, WALL, BALL = 0, 100, 101


class Labels(gym.Env):
    """A ball that appears somewhere beside a wall."""

    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, size):
        self.observation_space = gym.spaces.Box(0, 255, (size, size), np.uint8)
        self.seen = []

    def look(self):
        image = np.full(self.observation_space.shape, FLOOR, np.uint8)
        image[:, :5] = WALL
        row, column = self.np_random.integers(6, len(image) - 3, 2)
        image[row : row + 3, column : column + 3] = BALL
        self.seen.append(image)
        return image

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action):
        return self.look(), 0.0, False, len(self.seen) > 20, {}


def stored(name, size, **encoding):
    """Return the number of labels before and after, and the fraction of ball pixels that are still ball."""
    env = Labels(size)
    collector = minari.DataCollector(env, **encoding)
    collector.reset(seed=0)
    while not collector.step(collector.action_space.sample())[3]:
        pass
    about = {"algorithm_name": "random", "code_permalink": "none", "author": "none", "author_email": "none", "description": "labels"}
    got = minari.load_dataset(collector.create_dataset(f"{name}-v0", **about).spec.dataset_id)[0].observations
    seen = np.array(env.seen)
    result = len(np.unique(seen)), len(np.unique(got)), float((got[seen == BALL] == BALL).mean())
    print(f"{size} x {size}{', jpeg_encoding=False' if encoding else ''}: {result[0]} labels stored, {result[1]} read,", end=" ")
    print(f"{result[2]:.0%} of the ball's pixels kept")
    return result


large, small, exact = stored("large", 64), stored("small", 31), stored("exact", 64, jpeg_encoding=False)
raise SystemExit(not (large[1] > 20 and large[2] < 0.5 and small == exact == (3, 3, 1)))
PYTHON

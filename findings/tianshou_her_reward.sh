#!/usr/bin/env bash
# Tianshou's hindsight replay never sees a goal that is reached, if the buffer does not store the next observations.
#
# Versions: Tianshou 2.0.1, PyTorch 2.13.0, Gymnasium 1.4.0, NumPy 2.4.6.
#
# HERReplayBuffer replaces goals by those that an episode reached later, and takes new rewards from compute_reward_fn. With
# ignore_obs_next=True, which saves the memory of half of the observations, one expects the same rewards: the next observation is that of
# the next row. The buffer writes the new goal into the observations that the learner gets, but computes the rewards from rows that still
# have the old goal. In episodes that walk 10 steps to the right and never reach their goals, both settings relabel 86% of the samples. By
# default, the reward is 0 in each sample that reaches its new goal. With ignore_obs_next=True it is the old -1 in all of them. The last row
# of an episode is not counted, because its next observation is not stored.
# Consequence: the method is silently off. The learner sees that no goal is ever reached, the one thing that hindsight replay should change,
# and a run looks like a task that is too hard.
#
# Output:
#   default: 5527 of 6400 samples relabeled, 539 reach the new goal, of these 539 with reward 0
#   ignore_obs_next=True: 5527 of 6400 samples relabeled, 829 reach the new goal, of these 0 with reward 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 tianshou==2.0.1 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import numpy as np
from tianshou.data import Batch, HERReplayBuffer

EPISODES, STEPS, GOAL = 40, 10, 100.0


def reward(achieved_goal, desired_goal):
    return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.5).astype(float)


def seen(position):
    return {"observation": np.array([position]), "achieved_goal": np.array([position]), "desired_goal": np.array([GOAL])}


def sampled(name, **settings):
    """Return how many samples reach their new goal, and how many of these have the reward of a reached goal."""
    np.random.seed(0)  # the buffer draws from the global generator
    buffer = HERReplayBuffer(EPISODES * STEPS, compute_reward_fn=reward, horizon=STEPS, future_k=8, **settings)
    for _ in range(EPISODES):
        for time in range(STEPS):
            ends = {"terminated": False, "truncated": time == STEPS - 1, "info": {}}
            buffer.add(Batch(obs=seen(float(time)), obs_next=seen(time + 1.0), act=np.zeros(1), rew=-1.0, **ends))
    relabeled = reached = rewarded = 0
    for _ in range(100):
        batch, _ = buffer.sample(64)
        position, goal = batch.obs.observation[:, 0], batch.obs.desired_goal[:, 0]
        at_goal = (position + 1 == goal) & (position < STEPS - 1)
        relabeled += int((goal < GOAL).sum())
        reached += int(at_goal.sum())
        rewarded += int((batch.rew[at_goal] == 0).sum())
    print(f"{name}: {relabeled} of 6400 samples relabeled, {reached} reach the new goal, of these {rewarded} with reward 0")
    return relabeled > 5000 and reached > 100, reached - rewarded, rewarded


default, without = sampled("default"), sampled("ignore_obs_next=True", ignore_obs_next=True)
raise SystemExit(not (default[:2] == (True, 0) and without[0] and without[2] == 0))
PYTHON

#!/usr/bin/env bash
# d3rlpy pairs the actions of a Minari dataset with wrong observations: in the episode with the index k, they are k steps too old.
#
# Versions: d3rlpy 2.8.1, Minari 0.5.4, PyTorch 2.13.0, Gymnasium 1.0.0 (d3rlpy's pin), h5py 3.16.0, NumPy 2.4.6.
#
# One expects get_minari to return the transitions of the dataset. An episode of Minari has one observation more than actions, because it
# includes the last one. get_minari joins the observations of all episodes, and their actions, and cuts both at the same places. So each episode
# moves the observations by one more step against the actions, the rewards and the ends. The first episode is right, the second one starts with
# the end of the first, and later episodes begin more and more steps before their start. Nothing compares the lengths, and no warning appears.
# Here, a fixed policy plays 120 episodes of 50 steps of Pendulum, so each action follows from its observation, and each reward from both.
# Consequence: with 1000 episodes, the actions belong to observations of 500 steps later on average. Cloning, TD3+BC or CQL learn from wrong pairs,
# without an error. Create MDPDataset from `observations[:-1]` of each episode.
#
# Output:
#   episode 0 begins at step 0 of episode 0
#   episode 1 begins at step 50 of episode 0
#   episode 10 begins at step 41 of episode 9
#   episode 119 begins at step 34 of episode 116
#   get_minari: the action is that of the policy in 4% of the sampled transitions, the reward fits in 1%
#   MDPDataset, observations[:-1]: the action is that of the policy in 100% of the sampled transitions, the reward fits in 100%
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0
"$folder/venv/bin/pip" install -qq --no-compile d3rlpy==2.8.1 minari==0.5.4 gymnasium==1.0.0 gym==0.26.2 h5py==3.16.0 pillow==13.0.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - "$folder/datasets" 2>/dev/null <<'PYTHON'
import logging
import os
import sys

import gymnasium as gym
import minari
import numpy as np
import structlog
from d3rlpy.dataset import MDPDataset
from d3rlpy.datasets import get_minari
from minari.data_collector.episode_buffer import EpisodeBuffer

os.environ["MINARI_DATASETS_PATH"] = sys.argv[1]
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
EPISODES, STEPS, NAME = 120, 50, "pendulum/control-v0"


def control(obs):
    """Return the actions of a fixed policy."""
    return np.clip(2 * obs[..., 1:2] - 0.5 * obs[..., 2:] + obs[..., :1], -2, 2).astype(np.float32)


def play(env, seed):
    """Return an episode in Minari's form: with one observation more than actions."""
    obs, _ = env.reset(seed=seed)
    observations, rows, end = [obs], [], False
    while not end:
        action = control(obs)
        obs, *results, _ = env.step(action)
        observations.append(obs)
        rows.append((action, *results))
        end = any(results[1:])
    return EpisodeBuffer(seed, seed, None, observations, *map(list, zip(*rows)), infos={})


def agreement(name, dataset):
    """Return the fractions of sampled transitions whose action and whose reward follow from the observation."""
    batch = dataset.sample_transition_batch(4000)
    cosine, sine, speed = batch.observations.T
    reward = -(np.arctan2(sine, cosine) ** 2 + 0.1 * speed**2 + 0.001 * batch.actions[:, 0] ** 2)
    action = np.isclose(batch.actions, control(batch.observations), atol=1e-3).mean()
    reward = np.isclose(batch.rewards[:, 0], reward, rtol=1e-3, atol=1e-3).mean()
    print(f"{name}: the action is that of the policy in {action:.0%} of the sampled transitions, the reward fits in {reward:.0%}")
    return action, reward


np.random.seed(0)
env = gym.make("Pendulum-v1", max_episode_steps=STEPS)
about = {"algorithm_name": "control", "code_permalink": "none", "author": "none", "author_email": "none", "description": "control"}
played = [play(env, seed) for seed in range(EPISODES)]
minari.create_dataset_from_buffers(NAME, played, env=env, eval_env=env, **about)
read, _ = get_minari(NAME)

parts = list(minari.load_dataset(NAME))
places = {obs.tobytes(): (k, step) for k, part in enumerate(parts) for step, obs in enumerate(part.observations)}
begins = {k: places[read.episodes[k].observations[0].tobytes()] for k in (0, 1, 10, EPISODES - 1)}
for k, (episode, step) in begins.items():
    print(f"episode {k} begins at step {step} of episode {episode}")

columns = [[p.observations[:-1], p.actions, p.rewards, p.terminations, p.truncations] for p in parts]
aligned = MDPDataset(*map(np.concatenate, zip(*columns)))
wrong = agreement("get_minari", read)
right = agreement("MDPDataset, observations[:-1]", aligned)
moved = begins == {k: divmod(k * STEPS, STEPS + 1) for k in begins}
raise SystemExit(not (moved and begins[1] == (0, STEPS) and max(wrong) < 0.2 and right == (1, 1)))
PYTHON

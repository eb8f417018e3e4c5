#!/usr/bin/env bash
# Stable-Baselines3 resets the environment at each learn(), but its n-step returns and its hindsight goals go on across that reset.
#
# Versions: Stable-Baselines3 2.9.2, PyTorch 2.13.0, Gymnasium 1.4.0, NumPy 2.4.6.
#
# Training in pieces, with an evaluation after each model.learn(...), is common. One expects that a second call goes on, or that the episode that a
# call left unfinished ends there, as at a time limit. By default, learn() resets the environment (its argument reset_num_timesteps is documented
# as "used in logging"), and nothing tells the replay buffer. With n_steps=5, the last four rows of a call get rewards and a next observation from
# the next episode. HerReplayBuffer takes both episodes for one, and gives the first part goals that only the second one has reached. Only
# optimize_memory_usage, which needs the order of the rows too, ends the episode, with a warning. Whoever loads a model and its buffer gets such
# rows with reset_num_timesteps=False as well, because load() with an environment forgets the last observation.
# Here, each reset draws a lane in which the agent stays. An episode has 40 steps, and each of 20 calls 50. A sample that begins in one lane and ends
# in another, or has its goal there, is wrong.
# Consequence: the targets hold values that no action leads to, and hindsight replay teaches to reach goals that cannot be reached. With one call,
# or with calls of reset_num_timesteps=False, no sample is wrong. A program that learns in other pieces gets another result.
#
# Output:
#   TD3, n_steps=5: wrong samples 8% with 20 calls, 0% with one call, 0% with reset_num_timesteps=False
#   TD3 with HerReplayBuffer: wrong samples 14% with 20 calls, 0% with one call, 0% with reset_num_timesteps=False
#   TD3, n_steps=5, saved and loaded within an episode, reset_num_timesteps=False: wrong rows 4
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0
"$folder/venv/bin/pip" install -qq --no-compile stable-baselines3==2.9.2 gymnasium==1.4.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from stable_baselines3 import TD3, HerReplayBuffer

torch.set_num_threads(1)
FREE = Box(-np.inf, np.inf, (2,))


class Lanes(gym.Env):
    """Walk along a lane. The observation is the lane, which only a reset changes, and the distance."""

    action_space = Box(-1, 1, (1,))

    def __init__(self, goals):
        self.goals = goals
        self.observation_space = Dict({key: FREE for key in ("observation", "achieved_goal", "desired_goal")}) if goals else FREE

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -np.linalg.norm(achieved_goal - desired_goal, axis=-1)

    def observe(self):
        place = np.float32([self.lane, self.distance])
        goal = np.float32([self.lane, 100])
        return {"observation": place, "achieved_goal": place, "desired_goal": goal} if self.goals else place

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.lane, self.distance = self.np_random.uniform(), 0.0
        return self.observe(), {}

    def step(self, action):
        self.distance += float(action[0])
        return self.observe(), 1.0, False, False, {}


def make_env(goals):
    return gym.wrappers.TimeLimit(Lanes(goals), 40)


def create(goals):
    """Return a model that plays random actions, since no update is needed here."""
    special = {"replay_buffer_class": HerReplayBuffer} if goals else {"n_steps": 5}
    return TD3("MultiInputPolicy" if goals else "MlpPolicy", make_env(goals), learning_starts=10_000, buffer_size=5000, seed=0, **special)


def wrong(model, samples=20_000):
    """Return the share of samples of the replay buffer that join two lanes."""
    batch = model.replay_buffer.sample(samples)
    if isinstance(model.replay_buffer, HerReplayBuffer):
        start, end = batch.observations["observation"], batch.observations["desired_goal"]
    else:
        start, end = batch.observations, batch.next_observations
    return (start[:, 0] != end[:, 0]).float().mean().item()


def train(goals, calls, **arguments):
    model = create(goals)
    for _ in range(calls):
        model.learn(1000 // calls, **arguments)
    return wrong(model)


results = []
for name, goals in (("TD3, n_steps=5", False), ("TD3 with HerReplayBuffer", True)):
    shares = train(goals, 20), train(goals, 1), train(goals, 20, reset_num_timesteps=False)
    results.append(shares)
    texts = f"{shares[0]:.0%} with 20 calls, {shares[1]:.0%} with one call, {shares[2]:.0%} with reset_num_timesteps=False"
    print(f"{name}: wrong samples {texts}")

model = create(False)
model.learn(50)
model.save("model")
model.save_replay_buffer("buffer")
model = TD3.load("model", env=make_env(False))
model.load_replay_buffer("buffer")
model.learn(50, reset_num_timesteps=False)
rows = model.replay_buffer._get_samples(np.arange(100))
joined = int((rows.observations[:, 0] != rows.next_observations[:, 0]).sum())
print(f"TD3, n_steps=5, saved and loaded within an episode, reset_num_timesteps=False: wrong rows {joined}")
raise SystemExit(not (results[0][0] > 0.06 and results[1][0] > 0.1 and joined == 4 and all(s[1] == s[2] == 0 for s in results)))
PYTHON

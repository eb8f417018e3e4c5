#!/usr/bin/env bash
# The n-step buffer of AgileRL loses the ends of episodes: a terminal step gets the rewards and the next observation of the next episode.
#
# Versions: AgileRL 2.58.0, AgileRL-Arena 1.29.0, PyTorch 2.13.0, TensorDict 0.13.0, Gymnasium 1.4.0, NumPy 2.4.6, and what AgileRL imports.
#
# One expects MultiStepReplayBuffer, "for n-step returns in off-policy learning", to sum the rewards up to the end of an episode and to store that
# end. It looks for a terminal step from the second step of the window on. When the first step is the terminal one, it adds the rewards of the
# next episode and replaces the next observation and the flag, so the row says that the episode goes on. In a vector environment, it stops where
# any of the environments is terminal. The rows of the others end there too, with fewer rewards than the n that the learner discounts for.
# Here, each step has the reward 1, an episode of three steps is repeated, and n is 3. The learner of RainbowDQN bootstraps with gamma ** n.
# Consequence: no row of a last step has the flag, and its value is that of an endless task. In four environments, more than a third of the
# rows are wrong. ReplayBufferSpec(n_step_buffer=True) gives the same buffer to TD3 and DDPG. Use ReplayBuffer instead.
#
# Output:
#   one environment, episodes of 3 steps: 33% of the rows are wrong, 0 of 20 last steps are terminal
#   one environment, episodes of 3 steps: value of the last step 10.0, right is 1.0
#   one environment, one endless episode: 0% of the rows are wrong
#   four environments, episodes of 7 to 10 steps: 38% of the rows are wrong, rows of fewer steps without an end: yes
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0
"$folder/venv/bin/pip" install -qq --no-compile tensordict==0.13.0 gymnasium==1.4.0 numpy==2.4.6 accelerate==1.15.0 dill==0.4.1 fastrand==3.1.0 \
    lazy-loader==0.6 omegaconf==2.3.0 peft==0.21.2 pettingzoo==1.27.0 pillow==13.0.0 pydantic==2.14.4 wandb==0.31.0
"$folder/venv/bin/pip" install -qq --no-compile --no-deps agilerl==2.58.0 agilerl-arena==1.29.0
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import numpy as np
import torch
from agilerl.components.replay_buffer import MultiStepReplayBuffer
from tensordict import TensorDict

GAMMA, STEPS, N = 0.9, 62, 3


def play(lengths):
    """Return the steps of environments whose episodes have these lengths, as arrays of steps by environments."""
    times = np.stack([np.arange(STEPS) % length for length in lengths], 1)  # the observation is the time in the episode
    return times, times + 1, times + 1 == np.array(lengths)


def store(lengths):
    """Give the steps to AgileRL's buffer, and return the observations, rewards, next observations and flags of its rows."""
    buffer = MultiStepReplayBuffer(10_000, n_step=N, gamma=GAMMA)
    for obs, next_obs, done in zip(*play(lengths)):
        row = {"obs": obs, "action": 0 * obs, "reward": 0 * obs + 1, "next_obs": next_obs, "done": done}
        row = {key: torch.as_tensor(value, dtype=torch.float32)[:, None] for key, value in row.items()}
        buffer.add(TensorDict(row, batch_size=[len(lengths)]))
    rows = buffer.storage[: len(buffer)]
    return [rows[key].reshape(-1, len(lengths)).numpy() for key in ("obs", "reward", "next_obs", "done")]


def right(lengths):
    """Return the rewards, next observations and flags of n-step returns that end with the episode."""
    _, next_obs, done = play(lengths)
    rows = np.zeros((3, STEPS - N + 1, len(lengths)))
    for start, env in np.ndindex(rows.shape[1:]):
        used = next((k + 1 for k in range(N) if done[start + k, env]), N)
        rows[:, start, env] = sum(GAMMA**k for k in range(used)), next_obs[start + used - 1, env], done[start + used - 1, env]
    return rows


def wrong(lengths):
    """Return which rows of AgileRL's buffer differ from the right ones, and its rows."""
    rows = store(lengths)
    return (~np.isclose(rows[1:], right(lengths))).any(0), rows


bad, (obs, reward, next_obs, done) = wrong([3])
ends = done[obs == 2]  # the flags of the last steps
print(f"one environment, episodes of 3 steps: {bad.mean():.0%} of the rows are wrong, {ends.sum():.0f} of {len(ends)} last steps are terminal")
value = np.zeros(4)
for _ in range(200):  # value iteration with the rows, discounted as RainbowDQN does
    for o, r, following, d in zip(*(part[:, 0] for part in (obs, reward, next_obs, done))):
        value[int(o)] = r + GAMMA**N * (1 - d) * value[int(following)]
print(f"one environment, episodes of 3 steps: value of the last step {value[2]:.1f}, right is 1.0")
endless = wrong([STEPS + 1])[0].mean()
print(f"one environment, one endless episode: {endless:.0%} of the rows are wrong")
many, (_, reward, _, done) = wrong([7, 8, 9, 10])
short = ((reward < 2.7) & (done == 0)).any()
print(f"four environments, episodes of 7 to 10 steps: {many.mean():.0%} of the rows are wrong,", end=" ")
print("rows of fewer steps without an end:", "yes" if short else "no")
raise SystemExit(not (bad.mean() > 0.3 and ends.sum() == 0 and value[2] > 9.9 and endless == 0 and many.mean() > 0.3 and short))
PYTHON

#!/usr/bin/env bash
# PFRL's observation normalizer keeps its old scale when a checkpoint is loaded into an agent that has acted: the new mean meets the old deviation.
#
# Versions: PFRL 0.4.0, PyTorch 2.13.0, gym 0.26.2 (PFRL imports it), NumPy 2.4.6.
#
# EmpiricalNormalization is the obs_normalizer of PFRL's PPO and TRPO. Its mean, variance and count are buffers, and agent.load() sets
# them. One expects the agent to act as the saved one. The normalizer caches the inverse deviation at the first forward pass, outside of the
# buffers, and only experience() clears the cache. After load_state_dict(), the buffers and the "std" property show the loaded values, but
# forward() divides by the deviation of before. inverse() has no cache, so that it no longer undoes forward().
# In evaluation, nothing clears the cache. A training run gets the right scale with its next update, after a first rollout with the wrong one.
# Here, a PPO has seen observations with a deviation of 5, and its mean action is the normalized observation. An evaluation process with one
# agent loads it, after it acted with an untrained agent (deviation 1), or with an earlier checkpoint (deviation 0.5).
# Consequence: a loop over checkpoints, or a periodic evaluation in the same process, measures policies that nobody trained. The first
# checkpoint in a fresh process has the right score, so that a score depends on what was evaluated before it. Use a new agent for each one.
#
# Output:
#   observation 10, saved agent: deviation 5.00, action 2.00
#   observation 10, loaded into a fresh agent: deviation 5.00, action 2.00
#   observation 10, loaded into an agent that acted before: deviation 5.00, action 9.95
#   observation 10, loaded after an earlier checkpoint: deviation 5.00, action 19.61
#   normalizer, inverse(forward(10)): fresh agent 10.0, after an earlier checkpoint 98.1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0
"$folder/venv/bin/pip" install -qq --no-compile pfrl==0.4.0 gym==0.26.2 numpy==2.4.6 packaging==26.4
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import warnings

import numpy as np
import torch
from pfrl.agents import PPO
from pfrl.nn import Branched, EmpiricalNormalization
from pfrl.policies import GaussianHeadWithStateIndependentCovariance
from torch import nn

warnings.simplefilter("ignore")
torch.set_num_threads(1)
OBSERVATION = np.full(1, 10, np.float32)


def create(deviation=None):
    """Return an agent whose mean action is the normalized observation, after it has seen observations with this deviation."""
    mean = nn.Linear(1, 1)
    nn.init.ones_(mean.weight), nn.init.zeros_(mean.bias)
    actor = nn.Sequential(mean, GaussianHeadWithStateIndependentCovariance(1, "diagonal", var_func=torch.exp))
    model = Branched(actor, nn.Linear(1, 1))
    normalizer = EmpiricalNormalization(1, clip_threshold=None)
    if deviation is not None:
        normalizer.experience(torch.tensor([[-deviation], [deviation]]))
    return PPO(model, torch.optim.Adam(model.parameters()), obs_normalizer=normalizer, act_deterministically=True)


def evaluate(name, agent):
    with agent.eval_mode():
        action = agent.act(OBSERVATION).item()
    deviation = agent.obs_normalizer.std.item()
    if name:
        print(f"observation 10, {name}: deviation {deviation:.2f}, action {action:.2f}")
    return action


def undo(agent):
    """Return the observation after normalizing it and back."""
    normalized = agent.obs_normalizer(torch.from_numpy(OBSERVATION)[None], update=False)
    return agent.obs_normalizer.inverse(normalized).item()


saved, earlier = create(5.0), create(0.5)
saved.save("late")
earlier.save("early")
actions = [evaluate("saved agent", saved)]
fresh = create()
fresh.load("late")
actions.append(evaluate("loaded into a fresh agent", fresh))
used = create()
evaluate(None, used)
used.load("late")
actions.append(evaluate("loaded into an agent that acted before", used))
loop = create()
for name in "early", "late":
    loop.load(name)
    actions.append(evaluate("loaded after an earlier checkpoint" if name == "late" else None, loop))
same = [undo(fresh), undo(loop)]
print(f"normalizer, inverse(forward(10)): fresh agent {same[0]:.1f}, after an earlier checkpoint {same[1]:.1f}")
right, loaded, wrong, first, second = actions
seen = abs(right - 2) < 0.01 and loaded == right and wrong > 9 and second == first > 19 and same[1] > 90
raise SystemExit(not (seen and abs(same[0] - 10) < 0.01))
PYTHON

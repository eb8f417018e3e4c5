#!/usr/bin/env bash
# The off-policy evaluation of d3rlpy evaluates another policy than the one that was trained, if that one has an observation or action scaler.
#
# Versions: d3rlpy 2.8.1, PyTorch 2.13.0, Gymnasium 1.0.0 (d3rlpy's pin), NumPy 2.4.6.
#
# The documentation passes a trained algorithm and FQEConfig() to FQE, "to estimate the trained policy performance". One expects FQE to ask the
# algorithm for its actions, like predict() does, which applies the scalers of the algorithm. FQE calls the network of the policy directly. It
# gets the observations in the units of FQE's own scalers, and its action is taken to be in these units too. By default, FQE has no scalers:
# a network that was trained with standardized observations gets raw ones, and its output, in [-1, 1], is compared with raw actions. predict()
# and the evaluators of the same FQE object use the scalers of the algorithm, and no warning appears.
# Here, an episode has two steps. At the second step, the reward is 1 for a valve that is as open as the level is high, both from 0 to 10, and
# less for any other. The cloned policy gets nearly 1.
# Consequence: FQE ranks policies by values that no policy of them has. A good policy gets a bad value. Pass the scalers of the algorithm:
# FQEConfig(observation_scaler=algo.observation_scaler, action_scaler=algo.action_scaler).
#
# Output:
#   policy: mean valve 5, value at the first step 1.0
#   FQE, default: mean valve of the policy in the targets below 1, estimated value below 0.4
#   FQE, scalers of the policy: mean valve of the policy in the targets 5, estimated value 1.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0
"$folder/venv/bin/pip" install -qq --no-compile d3rlpy==2.8.1 gymnasium==1.0.0 gym==0.26.2 h5py==3.16.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import logging

import d3rlpy
import numpy as np
import structlog
import torch
from d3rlpy.algos import BCConfig
from d3rlpy.dataset import MDPDataset
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.metrics import InitialStateValueEstimationEvaluator
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.ope import FQE, FQEConfig
from d3rlpy.preprocessing import MinMaxActionScaler, StandardObservationScaler

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
torch.set_num_threads(1)
d3rlpy.seed(0)
EPISODES = 500
NET = {"batch_size": 64, "learning_rate": 3e-3, "encoder_factory": VectorEncoderFactory([64, 64])}
rng = np.random.default_rng(0)
level = rng.uniform(0, 10, 2 * EPISODES).astype(np.float32)
second = np.tile(np.float32([0, 1]), EPISODES)
obs = np.stack([level, second], 1)


def reward(valve):
    return second * (1 - ((valve - level) / 5) ** 2)


def record(valve):
    """Return a dataset of d3rlpy in which the valve was opened like this."""
    space = d3rlpy.ActionSpace.CONTINUOUS
    return MDPDataset(obs, valve[:, None].astype(np.float32), reward(valve).astype(np.float32), terminals=second, action_space=space)


def train(algo, data, steps):
    algo.fit(data, n_steps=steps, n_steps_per_epoch=steps, logger_adapter=NoopAdapterFactory(), show_progress=False)


def evaluate(name, policy, **scalers):
    """Train an FQE, and return its value of the policy at the first steps and the mean action of the policy in its targets."""
    fqe = FQE(algo=policy, config=FQEConfig(**NET, **scalers))
    data = record(rng.uniform(0, 10, 2 * EPISODES))
    fqe.build_with_dataset(data)
    actions, target = [], fqe.impl.compute_target
    fqe.impl.compute_target = lambda batch, action: actions.append((batch, action)) or target(batch, action)
    train(fqe, data, 800)
    first = torch.cat([action[batch.terminals.flatten() == 0] for batch, action in actions[-50:]])  # these bootstrap
    if fqe.action_scaler:
        first = fqe.action_scaler.reverse_transform(first)
    value, valve = InitialStateValueEstimationEvaluator()(fqe, data), first.mean().item()
    texts = f"{valve:.0f}" if valve > 1 else "below 1", f"{value:.1f}" if value > 0.4 else "below 0.4"
    print(f"FQE, {name}: mean valve of the policy in the targets {texts[0]}, estimated value {texts[1]}")
    return valve, value


policy = BCConfig(observation_scaler=StandardObservationScaler(), action_scaler=MinMaxActionScaler(), **NET).create()
train(policy, record(level), 400)
valve = policy.predict(obs)[:, 0]
true = 0.99 * reward(valve)[1::2].mean()
print(f"policy: mean valve {valve.mean():.0f}, value at the first step {true:.1f}")
default = evaluate("default", policy)
scaled = evaluate("scalers of the policy", policy, observation_scaler=policy.observation_scaler, action_scaler=policy.action_scaler)
raise SystemExit(not (true > 0.95 and default[0] < 1 and default[1] < 0.4 and round(scaled[0]) == 5 and abs(scaled[1] - true) < 0.05))
PYTHON

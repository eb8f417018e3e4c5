#!/usr/bin/env bash
# Two metrics of d3rlpy are wrong for an exact critic: the initial value of an episode of over 1,024 steps, and the TD error of several steps.
#
# Versions: d3rlpy 2.8.1, PyTorch 2.13.0, Gymnasium 1.0.0 (d3rlpy's pin), NumPy 2.4.6.
#
# InitialStateValueEstimationEvaluator is to return the mean value "at the initial states". One expects one value per episode. The evaluators
# read an episode in windows of 1,024 steps, and this one takes the first state of every window: two of three values of an episode of 3,000
# steps are from its middle. When a truncated episode has one step more than full windows, the last window is empty, and the evaluators fail.
# TDErrorEvaluator is to return the TD error. A row of a MultiStepTransitionPicker has the rewards of n steps. The trainer discounts the value
# after them by gamma ** n, the evaluator by gamma.
# Here, a machine gives no reward for the 200 steps that it heats, and then 1 per step. The discounted sum is 0.99 ** 200 / (1 - 0.99) = 13.4
# at the start, and 100 from step 200 on. A second policy does not heat, and gets 0.25 in every step, a sum of 25 anywhere. The observation
# holds both sums. A critic of d3rlpy with one hidden unit returns one of them, so it is exact.
# Consequence: policies are selected by states that they do not start from. The worse one of the two wins here. The TD error prefers the
# critic whose values are three times too large. Benchmarks with 1,000 steps hide the first error. Call predict_value with the first
# observations, and compute the TD error with a BasicTransitionPicker.
#
# Output:
#   first 1,000 steps: initial value, heating policy 13.4, other policy 25.0
#   all 3,000 steps: initial value, heating policy 71.1, other policy 25.0
#   first 1,025 steps: IndexError
#   rows of 1 step: TD error, exact critic 0.0, critic of 3 times the value 3.7
#   rows of 3 steps: TD error, exact critic 3.7, critic of 3 times the value 0.6
#   rows of 3 steps: loss of the trainer, exact critic 0.0, critic of 3 times the value 33.0
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
from d3rlpy.algos import DDPGConfig
from d3rlpy.dataset import BasicTransitionPicker, Episode, InfiniteBuffer, MultiStepTransitionPicker, ReplayBuffer
from d3rlpy.metrics import InitialStateValueEstimationEvaluator, TDErrorEvaluator
from d3rlpy.models.encoders import VectorEncoderFactory

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
torch.set_num_threads(1)
d3rlpy.seed(0)
GAMMA, HEATING, STEPS = 0.99, 200, 3000
step = np.arange(STEPS)
sums = np.stack([GAMMA ** np.maximum(HEATING - step, 0) / (1 - GAMMA), np.full(STEPS, 0.25 / (1 - GAMMA))], 1).astype(np.float32)
rewards = (step >= HEATING).astype(np.float32)[:, None]  # of the heating policy


def record(steps=STEPS, picker=None):
    """Return a dataset of one episode, the first steps of the machine, which was truncated and not terminated."""
    episode = Episode(sums[:steps], np.zeros((steps, 1), np.float32), rewards[:steps], terminated=False)
    return ReplayBuffer(InfiniteBuffer(), episodes=[episode], transition_picker=picker or BasicTransitionPicker())


def critic(heating, other):
    """Return a DDPG whose value is this weighted sum of the observation, for any action."""
    algo = DDPGConfig(gamma=GAMMA, critic_encoder_factory=VectorEncoderFactory([1])).create()
    algo.build_with_dataset(record())
    for part in algo.impl.modules.q_funcs[0], algo.impl.modules.targ_q_funcs[0]:
        hidden, last = [layer for layer in part.modules() if isinstance(layer, torch.nn.Linear)]
        with torch.no_grad():
            hidden.weight.copy_(torch.tensor([[heating, other, 0.0]]))  # the last input is the action
            last.weight.fill_(1)
            hidden.bias.zero_(), last.bias.zero_()
    return algo


exact, second, large = critic(1.0, 0.0), critic(0.0, 1.0), critic(3.0, 0.0)
start = InitialStateValueEstimationEvaluator()
initial = []
for name, data in ("first 1,000 steps", record(1000)), ("all 3,000 steps", record()):
    initial += start(exact, data), start(second, data)
    print(f"{name}: initial value, heating policy {initial[-2]:.1f}, other policy {initial[-1]:.1f}")
try:
    failed = f"no error, {start(exact, record(1025)):.1f}"
except IndexError:
    failed = "IndexError"
print("first 1,025 steps:", failed)
multi = record(picker=MultiStepTransitionPicker(3, GAMMA))
rows = multi.sample_transition_batch(6000)
errors = []
for name, measure in (
    ("rows of 1 step: TD error", lambda algo: TDErrorEvaluator()(algo, record())),
    ("rows of 3 steps: TD error", lambda algo: TDErrorEvaluator()(algo, multi)),
    ("rows of 3 steps: loss of the trainer", lambda algo: algo.update(rows)["critic_loss"]),
):
    errors += measure(exact), measure(large)
    print(f"{name}, exact critic {errors[-2]:.1f}, critic of 3 times the value {errors[-1]:.1f}")
seen = np.allclose(initial, [13.4, 25.0, 71.1, 25.0], atol=0.06) and failed == "IndexError"
right = max(errors[0], errors[4]) < 0.01 and min(errors[1], errors[5]) > 3
raise SystemExit(not (seen and right and errors[2] > 3 and errors[3] < 1))
PYTHON

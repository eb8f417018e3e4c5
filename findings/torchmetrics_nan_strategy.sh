#!/usr/bin/env bash
# TorchMetrics: MeanMetric forgets its weights when the NaN check is off, and a metric that imputes NaN writes into the measured tensor.
#
# Versions: TorchMetrics 1.9.0, PyTorch 2.13.0.
#
# nan_strategy="disable" is documented as "disable all nan checks", and people set it because the check of each update waits for the GPU. One
# expects the same mean of the same numbers. MeanMetric replaces the weights by ones: two evaluations with means 1.0 and 3.0 over 30 and 10
# episodes give 2.0 instead of 1.5. All other strategies give 1.5.
# nan_strategy=0.0 is documented as "impute any nan values with this value". One expects a metric to read its input. The aggregators of
# TorchMetrics assign the value to the tensor of the caller: after the update of a metric, a batch of rewards has a 0 where a NaN was, and
# the weight of that entry is 1. "ignore" and "warn" leave both alone.
# Consequence: a logged mean is wrong without a message. A reward of NaN, which a learner or a later check would have stopped at, becomes a
# reward of 0 that the critic is trained with, because somebody logs it.
#
# Output:
#   means 1.0 and 3.0 with weights 30 and 10: error 1.5, warn 1.5, ignore 1.5, disable 2.0, 0.0 1.5
#   rewards after MeanMetric(nan_strategy="ignore"): [1.0, nan, 3.0], weights [1.0, 2.0, 1.0]
#   rewards after MeanMetric(nan_strategy=0.0): [1.0, 0.0, 3.0], weights [1.0, 1.0, 1.0]
#   rewards after MaxMetric(nan_strategy=0.0): [1.0, 0.0, 3.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import math

import torch
from torchmetrics.aggregation import MaxMetric, MeanMetric


def mean(strategy):
    """Return the mean of two evaluations, weighted by their numbers of episodes."""
    metric = MeanMetric(nan_strategy=strategy)
    metric.update(torch.tensor([1.0, 3.0]), weight=torch.tensor([30.0, 10.0]))
    return metric.compute().item()


def measure(metric, **weight):
    """Return the rewards of a batch after a metric was updated with them."""
    rewards = torch.tensor([1.0, math.nan, 3.0])
    metric.update(rewards, **weight)
    return rewards.tolist()


means = {strategy: mean(strategy) for strategy in ("error", "warn", "ignore", "disable", 0.0)}
print("means 1.0 and 3.0 with weights 30 and 10: " + ", ".join(f"{strategy} {value}" for strategy, value in means.items()))
weights = {strategy: torch.tensor([1.0, 2.0, 1.0]) for strategy in ("ignore", 0.0)}
ignored, imputed = (measure(MeanMetric(nan_strategy=strategy), weight=weight) for strategy, weight in weights.items())
largest = measure(MaxMetric(nan_strategy=0.0))
print(f'rewards after MeanMetric(nan_strategy="ignore"): {ignored}, weights {weights["ignore"].tolist()}')
print(f"rewards after MeanMetric(nan_strategy=0.0): {imputed}, weights {weights[0.0].tolist()}")
print(f"rewards after MaxMetric(nan_strategy=0.0): {largest}")
changed = imputed == largest == [1.0, 0.0, 3.0] and weights[0.0].tolist() == [1.0, 1.0, 1.0] and math.isnan(ignored[1])
raise SystemExit(not (changed and means.pop("disable") == 2.0 and set(means.values()) == {1.5}))
PYTHON

#!/usr/bin/env bash
# CityLearn's reward for independent SAC agents is documented as min(-e^3, 0), but it is min(-e, 0), which rewards no lower peak.
#
# Versions: CityLearn 3.0.2, Gymnasium 0.28.1 (CityLearn allows none that is newer), scikit-learn 1.2.2, pandas 2.3.3, NumPy 1.26.4.
#
# One expects the formula of the table of rewards in CityLearn's documentation. With the consumption e of a building, its third power punishes
# peaks. The code is min(v*-1**3, 0). In Python, -1**3 is -(1**3), so the factor is -1, and IndependentSACReward returns the same numbers as the
# default, RewardFunction. The datasets of the CityLearn Challenges of 2020 and 2021 select IndependentSACReward.
# Here, a day has 4 hours of 6 kWh and 20 hours of 1 kWh. A battery makes the day flat, with losses of 5%. The formula prefers the flat day, and
# the class prefers the day without a battery.
# Consequence: an agent that shifts load to another hour gains nothing, and pays for the losses of the battery. RewardFunction(env_metadata,
# exponent=3) is the documented formula.
#
# Output:
#   central agent False, two buildings, IndependentSACReward: -88.0 with peaks, -92.4 flat
#   central agent False, two buildings, RewardFunction: -88.0 with peaks, -92.4 flat
#   central agent False, two buildings, RewardFunction, exponent 3: -1768.0 with peaks, -342.4 flat
#   central agent True, two buildings, IndependentSACReward: -88.0 with peaks, -92.4 flat
#   central agent True, two buildings, RewardFunction: -88.0 with peaks, -92.4 flat
#   central agent True, two buildings, RewardFunction, exponent 3: -1768.0 with peaks, -342.4 flat
#   1000 random loads: IndependentSACReward is the formula in 53%, RewardFunction with exponent 3 in 100%; IndependentSACReward is RewardFunction in 100%
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq gymnasium==0.28.1 scikit-learn==1.2.2 pandas==2.3.3 numpy==1.26.4 platformdirs==4.14.9 pyyaml==6.0.4 \
    requests==2.34.2 simplejson==4.3.0
"$folder/venv/bin/pip" install -qq --no-deps citylearn==3.0.2  # its other requirements serve the simulation
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import numpy as np
from citylearn.reward_function import IndependentSACReward, RewardFunction

peak = np.repeat([1.0, 6.0], [20, 4])  # kWh in each hour of a day
flat = np.full(24, 1.05 * peak.sum() / 24)


def total(function, *buildings):
    """Return the reward of a day for some buildings."""
    hours = [[{"net_electricity_consumption": load} for load in loads] for loads in zip(*buildings)]
    return float(np.sum([function.calculate(hour) for hour in hours]))


results = []
for central in (False, True):
    metadata = {"central_agent": central}
    functions = {
        "IndependentSACReward": IndependentSACReward(metadata),
        "RewardFunction": RewardFunction(metadata),
        "RewardFunction, exponent 3": RewardFunction(metadata, exponent=3),
    }
    for name, function in functions.items():
        days = total(function, peak, peak[::-1]), total(function, flat, flat)
        print(f"central agent {central}, two buildings, {name}: {days[0]:.1f} with peaks, {days[1]:.1f} flat")
        results.append(days)

loads = np.random.default_rng(0).normal(0, 5, 1000)  # negative: the building feeds into the grid
found, default, cubic = ([function.calculate([{"net_electricity_consumption": load}])[0] for load in loads] for function in functions.values())
formula = np.minimum(-(loads**3), 0)
same = [float(np.mean(np.isclose(values, formula))) for values in (found, cubic)]
linear = float(np.mean(np.equal(found, default)))
print(f"1000 random loads: IndependentSACReward is the formula in {same[0]:.0%}, RewardFunction with exponent 3 in {same[1]:.0%};", end=" ")
print(f"IndependentSACReward is RewardFunction in {linear:.0%}")
wrong = all(results[i] == results[i + 1] and results[i][0] > results[i][1] for i in (0, 3))
right = all(results[i][0] < results[i][1] for i in (2, 5))
raise SystemExit(not (wrong and right and linear == 1 and same[0] < 0.6 and same[1] == 1))
PYTHON

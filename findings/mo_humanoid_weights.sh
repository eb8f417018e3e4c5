#!/usr/bin/env bash
# MO-Gymnasium's weights that "recover" Humanoid-v5 pay 6.75 per step for staying upright instead of 5, and no other weights recover it.
#
# Versions: MO-Gymnasium 1.3.2, Gymnasium 1.4.0, MuJoCo 4.0.0, NumPy 2.4.6.
#
# The documentation of each MuJoCo task says which weights of LinearReward recover the reward of the original task. That is true for
# HalfCheetah, Swimmer and mo-ant-2obj, whose weights for the survival add up to 1. Humanoid adds the reward for survival and the cost of
# contacts to both objectives, and its weights, 1.25 and 0.1, add up to 1.35, so both count 1.35 times. The weights follow from the velocity
# and the control, so no linear reward is the original one. Hopper and Walker2d have the same error, 0.1%. States and ends are equal.
# Consequence: a humanoid that stands for 1000 steps gets 6750 instead of 5000, so returns do not compare with published ones of Humanoid-v5,
# and running pays less compared with standing. From each reward, subtract 0.35 * (info["reward_survive"] + info["reward_contact"]).
#
# Output:
#   HalfCheetah-v5: 20 episodes, mean return -59.46, with the documented weights -59.46
#   Swimmer-v5: 20 episodes, mean return 1.32, with the documented weights 1.32
#   Hopper-v5: 20 episodes, mean return 24.80, with the documented weights 24.83
#   Humanoid-v5: 20 episodes, mean return 105.58, with the documented weights 142.41, less 0.35 times survival and contacts 105.58
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile mo-gymnasium==1.3.2 gymnasium==1.4.0 mujoco==4.0.0 numpy==2.4.6 imageio==2.38.1 packaging==26.3
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import mo_gymnasium as mo_gym
import numpy as np
from mo_gymnasium.wrappers import LinearReward

EPISODES, STEPS = 20, 200


def compare(original, name, weights):
    """Play the same actions in both tasks. Return the mean return of the original one and the means with the weights and with the correction."""
    env, multi = gym.make(original), LinearReward(mo_gym.make(name), weight=np.array(weights))
    env.action_space.seed(0)
    totals = np.zeros(3)
    for seed in range(EPISODES):
        obs, multi_obs = env.reset(seed=seed)[0], multi.reset(seed=seed)[0]
        for _ in range(STEPS):
            action = env.action_space.sample()
            obs, reward, terminated, truncated, info = env.step(action)
            multi_obs, multi_reward, multi_terminated, multi_truncated, _ = multi.step(action)
            assert np.array_equal(obs, multi_obs) and (terminated, truncated) == (multi_terminated, multi_truncated)
            extra = (sum(weights) - 1) * (info.get("reward_survive", 0) + info.get("reward_contact", 0))
            totals += reward, multi_reward, multi_reward - extra
            if terminated or truncated:
                break
    means = totals / EPISODES
    text = f"{original}: {EPISODES} episodes, mean return {means[0]:.2f}, with the documented weights {means[1]:.2f}"
    corrected = f", less 0.35 times survival and contacts {means[2]:.2f}" if original == "Humanoid-v5" else ""
    print(text + corrected)
    return means


for task, name, weights in (("HalfCheetah-v5", "mo-halfcheetah-v5", [1, 0.1]), ("Swimmer-v5", "mo-swimmer-v5", [1, 1e-4])):
    right = compare(task, name, weights)
    assert abs(right[0] - right[1]) < 1e-4
hopper = compare("Hopper-v5", "mo-hopper-v5", [1, 0, 1e-3])
humanoid = compare("Humanoid-v5", "mo-humanoid-v5", [1.25, 0.1])
assert abs(humanoid[2] - humanoid[0]) < 1e-3
raise SystemExit(not (humanoid[1] > 1.25 * humanoid[0] and 1e-3 < hopper[1] - hopper[0] < 1))
PYTHON

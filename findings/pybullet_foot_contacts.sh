#!/usr/bin/env bash
# The robots of PyBullet's locomotion tasks feel the ground one step late: the foot contacts in an observation are those of the step before.
#
# Versions: pybullet_envs_gymnasium 0.6.0, PyBullet 3.2.7, Gymnasium 1.4.0, NumPy 2.4.6.
#
# The last numbers of an observation say which feet touch the ground. One expects them to be of the same time as the positions and speeds beside them.
# A step simulates, then builds the observation from the flags that it finds, and only then asks the simulator for the contacts and sets the flags. So
# each observation has the contacts of the step before, without an exception, and the first one after a reset always has none. HalfCheetah gets -1
# instead of +1 when its thighs or shins are on the ground. This comes from the same flags, so it is paid one step late too.
# Here, random actions are played, and the simulator is asked for the contacts after each step, in the way in which the environment asks.
# Consequence: a foot that lands or lifts off is seen 16.5 ms late, and the reward of HalfCheetah depends on contacts that the observation, from which
# the action was chosen, does not hold yet. A wrapper that asks for the contacts after each step, as this script does, and writes them into the
# observation, repairs the observation, but not the reward.
#
# Output:
#   HopperBulletEnv-v0: 2000 steps, contacts of the step before in 2000, wrong contacts in 429
#   Walker2DBulletEnv-v0: 2000 steps, contacts of the step before in 2000, wrong contacts in 469
#   HalfCheetahBulletEnv-v0: 2000 steps, contacts of the step before in 2000, wrong contacts in 857
#   HalfCheetah: bonus by the contacts of the step before in 2000 steps, not by those of the step itself in 142
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile pybullet_envs_gymnasium==0.6.0 pybullet==3.2.7 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON' | { grep -v '^argv' || true; }
import gymnasium as gym
import numpy as np
import pybullet_envs_gymnasium  # noqa: F401

STEPS = 2000


def contacts(env):
    """Ask the simulator which feet touch the ground."""
    return [float(any((point[2], point[4]) in env.ground_ids for point in foot.contact_list())) for foot in env.robot.feet]


def play(name):
    """Play random actions. Return the steps whose flags are those of the step before, those with wrong flags, and the bonuses of HalfCheetah."""
    env = gym.make(name)
    env.action_space.seed(0)
    first, _ = env.reset(seed=0)
    feet = len(env.unwrapped.robot.feet)
    before, late, wrong, bonuses = [0.0] * feet, 0, 0, []
    assert not first[-feet:].any()
    for _ in range(STEPS):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        now, seen = contacts(env.unwrapped), list(obs[-feet:])
        late += seen == before
        wrong += seen != now
        if name.startswith("HalfCheetah"):
            upright = abs(env.unwrapped.robot.body_rpy[1]) < 1
            right, old = (1 if upright and not any(flags[1:3] + flags[4:6]) else -1 for flags in (now, before))
            bonuses.append((env.unwrapped.rewards[0], old, right))
        before = now
        if terminated or truncated:
            obs, _ = env.reset()
            before = [0.0] * feet
            assert not obs[-feet:].any()
    print(f"{name}: {STEPS} steps, contacts of the step before in {late}, wrong contacts in {wrong}")
    return late, wrong, bonuses


hopper, walker, cheetah = (play(f"{name}BulletEnv-v0") for name in ("Hopper", "Walker2D", "HalfCheetah"))
given, old, right = np.transpose(cheetah[2])
paid, other = int((given == old).sum()), int((given != right).sum())
print(f"HalfCheetah: bonus by the contacts of the step before in {paid} steps, not by those of the step itself in {other}")
raise SystemExit(not (all(each[0] == STEPS and each[1] > 200 for each in (hopper, walker, cheetah)) and paid == STEPS and other > 50))
PYTHON

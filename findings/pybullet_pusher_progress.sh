#!/usr/bin/env bash
# PyBullet's Pusher pays nothing for pushing: neither its reward nor the vector to the target in its observation follows the object.
#
# Versions: pybullet_envs_gymnasium 0.6.0, PyBullet 3.2.7, Gymnasium 1.4.0, NumPy 2.4.6.
#
# PusherBulletEnv-v0 is registered with a reward_threshold of 18, and one expects, as of MuJoCo's Pusher, that it rewards an object which comes
# closer to its target. The vector to the target is the difference of the two positions that were drawn at the reset, so it never changes. The
# potential, 100 times that distance, is defined in the class of the environment, but a step asks the class of the robot, whose potential
# is 0. What is left are costs, of the actions and of 0.1 for each joint within its limits. The joints of the object and of the target count
# too, so at least 0.4 are lost in each step, and the actions can earn at most 0.07: no return is above -49. Reacher has its potential
# in the class of the robot, and pays for progress.
# Consequence: an agent never learns to push, and a return says nothing about the task. The test plays the same random actions twice, and
# slides the object to the target the second time: the return is the same, and less than without any action.
#
# Output:
#   random actions: object 0.72 m from the target, then 0.76 m, progress 0.00, return -150.3, observed vector changed by 0.00 m
#   the same, and the object slides to the target: object 0.72 m from the target, then 0.01 m, progress 0.00, return -150.3, observed vector changed by 0.00 m
#   no action: object 0.72 m from the target, then 0.72 m, progress 0.00, return -117.6, observed vector changed by 0.00 m
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile pybullet_envs_gymnasium==0.6.0 pybullet==3.2.7 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON' | { grep -v '^argv' || true; }
import gymnasium as gym
import numpy as np
import pybullet_envs_gymnasium  # noqa: F401

EPISODES, STEPS, PUSHES = 5, 150, 75
VECTOR, OBJECT, TARGET = slice(44, 46), slice(49, 51), slice(52, 54)  # in an observation of Pusher


def distance(obs):
    """Return the distance of the object from the target in m."""
    return float(np.linalg.norm(obs[OBJECT] - obs[TARGET]))


def slide(robot, steps_left):
    """Move the object a part of its way to the target."""
    for axis in "xy":
        place, goal = (robot.jdict[f"{thing}_{axis}"].get_position() for thing in ("object", "target"))
        robot.jdict[f"object_{axis}"].reset_current_position(place + (goal - place) / steps_left, 0)


def play(name, still=False, push=False):
    """Play episodes. Return the mean distances at the begin and the end, the mean rewards of progress and in total, and the vector's change."""
    env = gym.make("PusherBulletEnv-v0")
    env.action_space.seed(0)
    results = []
    for seed in range(EPISODES):
        first = env.reset(seed=seed)[0]
        progress = total = 0
        for step in range(STEPS):
            if push and step < PUSHES:
                slide(env.unwrapped.robot, PUSHES - step)
            action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(0 * action if still else action)
            assert (terminated, truncated) == (False, step == STEPS - 1)
            progress += env.unwrapped.rewards[0]
            total += reward
        results.append((distance(first), distance(obs), progress, total, np.abs(obs[VECTOR] - first[VECTOR]).max()))
    env.close()
    begin, end, progress, total, change = means = np.mean(results, 0)
    text = f"progress {progress:.2f}, return {total:.1f}, observed vector changed by {change:.2f} m"
    print(f"{name}: object {begin:.2f} m from the target, then {end:.2f} m, {text}")
    return means


random = play("random actions")
pushed = play("the same, and the object slides to the target", push=True)
still = play("no action", still=True)
assert random[0] == pushed[0] and pushed[1] < 0.05 < 0.5 < random[1]
nothing = random[2] == pushed[2] == 0 and pushed[4] == 0
raise SystemExit(not (nothing and abs(pushed[3] - random[3]) < 3 and pushed[3] < still[3] < -49))
PYTHON

#!/usr/bin/env bash
# Bullet-Safety-Gym's Reach tasks have two goals only, which take turns, and SafetyCarReach pays 30 for a car that stands still.
#
# Versions: bullet_safety_gym 1.4.0, PyBullet 3.2.7, Gymnasium 0.28.1, NumPy 1.26.4.
#
# The documentation says that the goal is spawned again as soon as it is reached, so that an agent has to reach a series of goals among obstacles. One
# expects random goals that are clear of the obstacles. A reset places the obstacles away from an older goal, and then sets the goal to (-6, 6) or
# (6, 6) in turns, in all four tasks, whatever the seed. The turn outlives the episode. So an obstacle lies in the goal zone now and then, and a seed
# fixes neither the start nor the obstacles, which come from NumPy's global generator. SafetyCarReach always starts at (-6, 6), which is the
# first goal: the first step reaches it and pays the bonus. An idle car gets it in each episode, except in the first one if one resets twice before.
# Consequence: a policy that knows two points by heart solves the task. The return of an episode depends on the goals reached before, so a score of
# 30 with the car may mean nothing. A test should set env.unwrapped.task.switch_flag = True before each reset, so that the first goal is (6, 6).
#
# Output:
#   SafetyBallReach-v0, seeds 0 to 19: goals (-6, 6), (6, 6), in turns True, an obstacle in the goal zone 3 times
#   SafetyAntReach-v0, seeds 0 to 19: goals (-6, 6), (6, 6), in turns True, an obstacle in the goal zone 2 times
#   SafetyDroneReach-v0, seeds 0 to 19: goals (-6, 6), (6, 6), in turns True, an obstacle in the goal zone 8 times
#   SafetyCarReach-v0, idle car: bonuses [30, 30, 30], after one more reset [0, 30, 30], with switch_flag [0, 0, 0]
#   SafetyBallReach-v0, two resets with seed 0: the same observation False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile bullet_safety_gym==1.4.0 pybullet==3.2.7 gymnasium==0.28.1 numpy==1.26.4
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON' | { grep -v '^argv' || true; }
import bullet_safety_gym  # noqa: F401
import gymnasium as gym
import numpy as np


def place(body):
    return np.asarray(body.get_position()[:2])


def layouts(name):
    """Reset 20 times. Return the goals, and how often an obstacle lies in the goal zone."""
    np.random.seed(0)  # the library draws from NumPy's global generator
    env = gym.make(name)
    task, goals, blocked = env.unwrapped.task, [], 0
    for seed in range(20):
        env.reset(seed=seed)
        goals.append(tuple(place(task.goal).round().astype(int).tolist()))
        blocked += any(np.linalg.norm(place(each) - place(task.goal)) < task.goal.radius for each in env.unwrapped.obstacles)
    turns = goals == goals[:2] * 10
    both = ", ".join(map(str, goals[:2]))
    print(f"{name}, seeds 0 to 19: goals {both}, in turns {turns}, an obstacle in the goal zone {blocked} times")
    return turns and set(goals) == {(-6, 6), (6, 6)} and blocked > 0


def idle(env, flag=False):
    """Return the bonuses for reached goals in three episodes of a car whose actions are 0."""
    bonuses = []
    for _ in range(3):
        if flag:
            env.unwrapped.task.switch_flag = True
        env.reset()
        total, done = 0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(np.zeros(2, np.float32))
            total, done = total + 30 * (reward > 20), terminated or truncated  # the other rewards are below 1
        bonuses.append(total)
    return bonuses


found = [layouts(f"Safety{agent}Reach-v0") for agent in ("Ball", "Ant", "Drone")]
first = idle(gym.make("SafetyCarReach-v0"))
env = gym.make("SafetyCarReach-v0")
env.reset()
again = idle(env)
repaired = idle(gym.make("SafetyCarReach-v0"), flag=True)
print(f"SafetyCarReach-v0, idle car: bonuses {first}, after one more reset {again}, with switch_flag {repaired}")
ball = gym.make("SafetyBallReach-v0")
same = np.array_equal(ball.reset(seed=0)[0], ball.reset(seed=0)[0])
print(f"SafetyBallReach-v0, two resets with seed 0: the same observation {same}")
paid = first == [30] * 3 and again == [0, 30, 30] and repaired == [0] * 3
raise SystemExit(not (all(found) and paid and not same))
PYTHON

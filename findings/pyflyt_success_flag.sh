#!/usr/bin/env bash
# PyFlyt reports a completed task as a truncation, so a learner adds the value of more flight to a success.
#
# Versions: PyFlyt 0.29.0, PyBullet 3.2.7, Gymnasium 1.4.0, NumPy 1.26.4.
#
# One expects a task that ends in success to set terminated, and a time limit to set truncated. In PyFlyt both set truncated, and only
# info["env_complete"] differs. This holds for the waypoints of the quadcopter (shown here), of the quadcopter with a pole and of the fixed
# wing, for the ball in the cup, and for the landing of the rocket. The documentation does not mention it. A comment in the source of the ball in
# the cup calls it a hack, because an agent would need a huge reward to end an episode. The last observation still contains the waypoint.
# Here, a position controller flies to one waypoint, which gives 100. The discounted return from the start is 73. A value that is linear in
# (1, distance, distance^2) and solves the temporal differences of these steps (LSTD) agrees if the success ends the episode. With the flags
# of the environment it is 14 times as high: the value near the waypoint is 100 plus the discounted value near the waypoint.
# Consequence: learned values of a success have no relation to the score. To end the task, set terminated from info["env_complete"] in a
# wrapper. The reward does not encourage success then: a drone that waits in front of the waypoint until the time limit has a higher return.
#
# Output:
#   time limit of 1 s: (terminated, truncated, env_complete) = {(False, True, False)}, last reward -0.0
#   waypoint reached: (terminated, truncated, env_complete) = {(False, True, True)}, last reward 100.0
#   last observation: the waypoint is still there, at most 0.20 m away
#   value of the start: 73 measured, 74 if env_complete ends an episode, 1027 if terminated does
#   return of the task: 134 if the drone reaches the waypoint, 216 with a setpoint 50 cm in front of it
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq PyFlyt==0.29.0 pybullet==3.2.7 gymnasium==1.4.0 numpy==1.26.4
"$folder/venv/bin/python" - 3>&1 >/dev/null 2>&1 <<'PYTHON'  # PyBullet writes to stdout
import gymnasium as gym
import numpy as np
import PyFlyt.gym_envs  # registers the tasks

SEEDS = 2, 5, 9, 10, 15, 18  # the waypoint is within the bounds of the action
DISCOUNT = 0.99
out = open(3, "w")


def flight(seed, seconds=10.0, gap=0.0):
    """Fly to a waypoint, or near it, with the built-in position controller. Return the distances, the rewards and the end."""
    options = {"num_targets": 1, "flight_mode": 7, "flight_dome_size": 3.0, "max_duration_seconds": seconds}
    env = gym.make("PyFlyt/QuadX-Waypoints-v4", **options)
    obs, _ = env.reset(seed=seed)
    target = env.unwrapped.waypoints.targets[0]
    back = np.array([0, 0, 1]) - target  # towards the start
    x, y, z = target + gap * back / np.linalg.norm(back)
    action = np.array([x, y, 0, z])  # position and yaw
    assert env.action_space.contains(action)
    distances, rewards, ended = [np.linalg.norm(obs["target_deltas"][0])], [], False
    while not ended:
        obs, reward, terminated, truncated, info = env.step(action)
        distances.append(np.linalg.norm(obs["target_deltas"][0]))
        rewards.append(reward)
        ended = terminated or truncated
    env.close()
    return np.array(distances), np.array(rewards), (bool(terminated), bool(truncated), bool(info["env_complete"]))


def features(distance):
    return np.stack([np.ones_like(distance), distance, distance**2], axis=1)


def value(flights, flag):
    """Solve the temporal differences of all steps, and return the mean value of the first states."""
    left, right = np.zeros((3, 3)), np.zeros(3)
    for distances, rewards, end in flights:
        here, there = features(distances[:-1]), features(distances[1:])
        there[-1] *= not end[flag]
        left += here.T @ (here - DISCOUNT * there)
        right += here.T @ rewards
    starts = np.array([distances[0] for distances, _, _ in flights])
    return float(np.mean(features(starts) @ np.linalg.solve(left, right)))


late = flight(SEEDS[0], seconds=1.0)
flights = [flight(seed) for seed in SEEDS]
for name, flown in (("time limit of 1 s", [late]), ("waypoint reached", flights)):
    flags = {end for _, _, end in flown}
    print(f"{name}: (terminated, truncated, env_complete) = {flags}, last reward {flown[0][1][-1]:.1f}", file=out)
last = max(distances[-1] for distances, _, _ in flights)
true = float(np.mean([np.sum(rewards * DISCOUNT ** np.arange(len(rewards))) for _, rewards, _ in flights]))
with_complete, with_terminated = value(flights, 2), value(flights, 0)
print(f"last observation: the waypoint is still there, at most {last:.2f} m away", file=out)
print(f"value of the start: {true:.0f} measured, {with_complete:.0f} if env_complete ends an episode,", end=" ", file=out)
print(f"{with_terminated:.0f} if terminated does", file=out)
reach, wait = (float(np.mean([np.sum(rewards) for _, rewards, _ in some])) for some in (flights, [flight(seed, gap=0.5) for seed in SEEDS]))
print(f"return of the task: {reach:.0f} if the drone reaches the waypoint, {wait:.0f} with a setpoint 50 cm in front of it", file=out)
flagged = late[2] == (False, True, False) and all(end == (False, True, True) for _, _, end in flights)
raise SystemExit(not (flagged and abs(with_complete / true - 1) < 0.3 and with_terminated > 5 * true and wait > 1.4 * reach))
PYTHON

#!/usr/bin/env bash
# The dense rewards of three Adroit hand tasks grow with the distance between the hand and the object that it should take.
#
# Versions: Gymnasium-Robotics 1.4.2, MuJoCo 3.10.0, Gymnasium 1.4.0, NumPy 2.4.6.
#
# The documentation of AdroitHandDoor, AdroitHandHammer and AdroitHandRelocate describes the first term of the dense reward as a penalty: 0.1
# times the distance from the palm to the handle, the hammer or the ball. The code adds this term, while
# version 1.2.0 subtracted it under the same ids. A constant action drives the hand to the object for an episode, and the opposite one drives it
# away. In all three tasks the retreat has the higher return, and the order turns around if the term is subtracted. A notice at the import
# says that the rewards were updated in 1.2.1, but neither which term it was nor that it has the wrong sign.
# Consequence: before the first contact, an agent learns to stay away from the object, and its returns cannot be compared with those of
# version 1.2.0. Subtract 0.2 times the distance, or use the sparse ids, such as AdroitHandDoorSparse-v1.
#
# Output:
#   Door, hand to the object: 14 cm at the end, return -46.0, with the documented sign -51.9
#   Door, hand away from the object: 63 cm at the end, return -36.3, with the documented sign -61.0
#   Hammer, hand to the object: 2 cm at the end, return -236.8, with the documented sign -237.6
#   Hammer, hand away from the object: 32 cm at the end, return -231.8, with the documented sign -244.7
#   Relocate, hand to the object: 33 cm at the end, return 6.4, with the documented sign -6.4
#   Relocate, hand away from the object: 47 cm at the end, return 9.2, with the documented sign -9.2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile gymnasium-robotics==1.4.2 mujoco==3.10.0 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import contextlib
import io

import gymnasium as gym
import numpy as np

with contextlib.redirect_stdout(io.StringIO()):  # the notice
    import gymnasium_robotics

    gym.register_envs(gymnasium_robotics)

# the actuator that moves the arm to the object with +1, and the vector from the object to the palm in the observation
TASKS = {
    "Door": (0, lambda obs: obs[35:38]),
    "Hammer": (0, lambda obs: obs[33:36] - obs[36:39]),
    "Relocate": (2, lambda obs: obs[30:33]),
}


def episode(env, actuator, to_object, push):
    """Return the last distance, the return, and the return with the documented sign."""
    obs, _ = env.reset(seed=0)
    action, total, distances, ended = np.zeros(env.action_space.shape, np.float32), 0.0, [], False
    action[actuator] = push
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(action)
        total, ended = total + float(reward), terminated or truncated
        distances.append(float(np.linalg.norm(to_object(obs))))
    return distances[-1], total, total - 0.2 * sum(distances)


same = True
for task, (actuator, to_object) in TASKS.items():
    env = gym.make(f"AdroitHand{task}-v1")
    results = {"to": episode(env, actuator, to_object, 1), "away from": episode(env, actuator, to_object, -1)}
    for name, (distance, total, documented) in results.items():
        print(f"{task}, hand {name} the object: {100 * distance:.0f} cm at the end, return {total:.1f}, with the documented sign {documented:.1f}")
    near, far = results.values()
    same = same and near[0] < far[0] - 0.1 and near[1] < far[1] and near[2] > far[2]
raise SystemExit(not same)
PYTHON

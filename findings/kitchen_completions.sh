#!/usr/bin/env bash
# FrankaKitchen's list of completed tasks is empty in the last info of a vector environment that resets in the same step.
#
# Versions: Gymnasium-Robotics 1.4.2, MuJoCo 3.10.0, Gymnasium 1.4.0, NumPy 2.4.6.
#
# One expects that info["episode_task_completions"], the list from which one takes the success rate, belongs to its step. All steps return
# the environment's own list, and a reset clears it. In an environment that opens the microwave in step 2 and the slide cabinet in step 4,
# the info of step 2 gets the second task two steps later, and loses both at the reset. A vector environment with AutoresetMode.SAME_STEP
# keeps the last info in final_info, resets, and returns: the list is empty in each episode, in the process and in another. With
# NEXT_STEP, it is right until the next step. The other list, step_task_completions, is a copy.
# Consequence: success rates of 0 for a policy that completes all tasks, depending on the reset mode of the evaluation, and stored infos that
# know the future or nothing. The reward is right: by default, the return is the number of completed tasks.
#
# Output:
#   info of step 2: ['microwave'], the same info after step 4: ['microwave', 'slide cabinet'], after the reset: []
#   NEXT_STEP: completed in the last info ['microwave', 'slide cabinet'], return 2, truncated True
#   SAME_STEP: completed in the last info [], return 2, truncated True
#   SAME_STEP in another process: completed in the last info [], return 2, truncated True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile gymnasium-robotics==1.4.2 mujoco==3.10.0 gymnasium==1.4.0 numpy==2.4.6
cat >"$folder/kitchen.py" <<'PYTHON'
import contextlib
import io

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

with contextlib.redirect_stdout(io.StringIO()):  # a notice about other tasks
    import gymnasium_robotics

    gym.register_envs(gymnasium_robotics)

KEY, STEPS = "episode_task_completions", 5


class Helper(gym.Wrapper):
    """Open the microwave before step 2 and the slide cabinet before step 4."""

    def reset(self, **options):
        self.steps = 0
        return self.env.reset(**options)

    def step(self, action):
        self.steps += 1
        if self.steps == 2:
            self.unwrapped.data.qpos[22] = -0.75
        if self.steps == 4:
            self.unwrapped.data.qpos[19] = 0.37
        return self.env.step(action)


def make():
    tasks = ["microwave", "slide cabinet", "kettle"]
    return Helper(gym.make("FrankaKitchen-v1", tasks_to_complete=tasks, max_episode_steps=STEPS))


def vector(name, kind, mode):
    """Return the list of the last info and the return of one episode."""
    envs = kind([make], autoreset_mode=mode)
    envs.reset(seed=0)
    total = 0.0
    for _ in range(STEPS):
        _, reward, _, truncated, infos = envs.step(np.zeros(envs.action_space.shape, np.float32))
        total += float(reward[0])
    done = list((infos["final_info"] if "final_info" in infos else infos)[KEY][0])
    envs.close()
    print(f"{name}: completed in the last info {done}, return {total:.0f}, truncated {bool(truncated[0])}")
    return len(done), total


def main():
    env = make()
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape)
    infos = [env.step(action)[4] for _ in range(2)]
    seen = [list(infos[1][KEY])]
    infos += [env.step(action)[4] for _ in range(2)]
    seen.append(list(infos[1][KEY]))
    env.reset()
    seen.append(list(infos[1][KEY]))
    print(f"info of step 2: {seen[0]}, the same info after step 4: {seen[1]}, after the reset: {seen[2]}")
    next_step = vector("NEXT_STEP", SyncVectorEnv, AutoresetMode.NEXT_STEP)
    same_step = vector("SAME_STEP", SyncVectorEnv, AutoresetMode.SAME_STEP)
    process = vector("SAME_STEP in another process", AsyncVectorEnv, AutoresetMode.SAME_STEP)
    return [len(names) for names in seen] == [1, 2, 0] and next_step == (2, 2) and same_step == process == (0, 2)


if __name__ == "__main__":
    raise SystemExit(not main())
PYTHON
"$folder/venv/bin/python" "$folder/kitchen.py" 2>/dev/null

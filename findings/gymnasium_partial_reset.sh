#!/usr/bin/env bash
# Gymnasium's RecordEpisodeStatistics forgets the returns of all environments whenever one of them is reset, if autoreset is disabled.
#
# Versions: Gymnasium 1.4.0, MuJoCo 3.10.0, NumPy 2.4.6.
#
# With AutoresetMode.DISABLED, one resets the environments that have ended with options={"reset_mask": ended}. The wrapper has code that
# restarts the statistics of just these. But it looks for the mask after it has passed the reset on, and by then SyncVectorEnv and
# AsyncVectorEnv have taken the mask out of the same dictionary, so the wrapper believes that all environments are new. The episodes
# themselves are right, each is reported once, and with one environment all is well. The test counts the steps and rewards of Hopper itself.
# Consequence: a return counts only the steps since any environment was last reset. The more environments, the worse the same policy looks:
# with 16, Hoppers seem to fall after 2 steps instead of 22. info["episode"], return_queue and length_queue hold these numbers, which one
# compares, plots and chooses checkpoints by. A wrapper between the two that copies the options keeps the mask.
#
# Output:
#   1 environment: 46 episodes, mean length 21.5, recorded 21.5, mean return 17.0, recorded 17.0
#   4 environments: 169 episodes, mean length 23.3, recorded 6.1, mean return 18.1, recorded 2.8
#   16 environments: 703 episodes, mean length 22.5, recorded 2.0, mean return 17.3, recorded 0.0
#   4 environments, each in a process: 169 episodes, mean length 23.3, recorded 6.1, mean return 18.1, recorded 2.8
#   16 environments, AutoresetMode.NEXT_STEP: 665 episodes, mean length 22.9, recorded 22.9, mean return 17.6, recorded 17.6
#   16 environments, a copy of the options: 703 episodes, mean length 22.5, recorded 22.5, mean return 17.3, recorded 17.3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile gymnasium==1.4.0 mujoco==3.10.0 numpy==2.4.6 imageio==2.38.1 packaging==26.3
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics

STEPS = 1000


class CopyOptions(VectorWrapper):
    """Resets with a copy of the options, so that the caller's dictionary keeps its mask."""

    def reset(self, *, seed=None, options=None):
        return self.env.reset(seed=seed, options=options and dict(options))


def compare(name, num_envs, mode=AutoresetMode.DISABLED, copy=False, backend="sync"):
    """Play random actions. Return the mean lengths and returns of the episodes as counted here, and as recorded by the wrapper."""
    envs = gym.make_vec("Hopper-v5", num_envs=num_envs, vectorization_mode=backend, vector_kwargs={"autoreset_mode": mode})
    envs = RecordEpisodeStatistics(CopyOptions(envs) if copy else envs)
    envs.action_space.seed(0)
    envs.reset(seed=0)
    begun = np.zeros(num_envs, bool)  # whether the next step only resets, as in NEXT_STEP
    lengths, returns, counted, recorded = np.zeros(num_envs), np.zeros(num_envs), [], []
    for _ in range(STEPS):
        _, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
        lengths += ~begun
        returns += np.where(begun, 0, reward)
        ended = terminated | truncated
        begun = ended & (mode == AutoresetMode.NEXT_STEP)
        if ended.any():
            assert (info["_episode"] == ended).all()
            counted.extend(zip(lengths[ended], returns[ended]))
            recorded.extend(zip(info["episode"]["l"][ended], info["episode"]["r"][ended]))
            lengths[ended] = returns[ended] = 0
            if mode == AutoresetMode.DISABLED:
                envs.reset(options={"reset_mask": ended})
    envs.close()
    (length, total), (seen_length, seen_total) = np.mean(counted, 0), np.mean(recorded, 0)
    text = f"mean length {length:.1f}, recorded {seen_length:.1f}, mean return {total:.1f}, recorded {seen_total:.1f}"
    print(f"{name}: {len(counted)} episodes, {text}")
    return length, seen_length, total, seen_total


def right(numbers):
    """Return whether the recorded numbers are the counted ones."""
    return np.allclose(numbers[::2], numbers[1::2])


assert right(compare("1 environment", 1))
few, many = compare("4 environments", 4), compare("16 environments", 16)
process = compare("4 environments, each in a process", 4, backend="async")
assert right(compare("16 environments, AutoresetMode.NEXT_STEP", 16, AutoresetMode.NEXT_STEP))
assert right(compare("16 environments, a copy of the options", 16, copy=True))
assert abs(few[0] - many[0]) < 5
raise SystemExit(not (many[1] < 0.3 * many[0] and many[3] < 0.3 * many[2] and few[1] < 0.7 * few[0] and process == few))
PYTHON

#!/usr/bin/env bash
# robosuite at 30 or 40 Hz: a step returns an observation from up to a whole step ago, and how old it is changes during an episode.
#
# Versions: robosuite 1.5.2, MuJoCo 3.3.0, NumPy 1.26.4, h5py 3.16.0, packaging 26.4.
#
# One expects that step returns the state after the action, or at least always equally old, and that control_freq is the frequency.
# The simulation has steps of 2 ms. A control step has int(500 / control_freq) of them, so 30 Hz is 31.25 Hz, and 40 Hz is 41.7 Hz. The
# sensors have a clock of their own with the period 1 / control_freq, which is longer then. Their measurement falls later into the control
# steps each time: the first step returns the observation of the reset, the next ones are as old as a control step, then ever fresher ones,
# and then an observation is returned twice and it begins again. The reward belongs to the current state. At 20, 25, 50 and 100 Hz, all is
# current. Even there, _get_observations(force_update=True), which is meant for reading after a state was set, moves the clock of the
# sensors by 2 ms: after 10 calls, all observations are 20 ms old until the next reset. GymWrapper returns the same observations.
# Consequence: the task has a delay that depends on the number of the step, which no observation contains, and a recorded state does not
# belong to its observation. Results of 30 Hz and of 25 Hz differ for this reason, too. Choose 20, 25, 50 or 100 Hz.
#
# Output:
#   20 Hz: 20.0 Hz in the simulation, observation 0 to 0 ms old, 0 of 50 the same as before
#   30 Hz: 31.2 Hz in the simulation, observation 0 to 32 ms old, 2 of 50 the same as before
#   40 Hz: 41.7 Hz in the simulation, observation 0 to 24 ms old, 2 of 50 the same as before
#   20 Hz, 10 forced observations after the reset: 20.0 Hz in the simulation, observation 20 to 20 ms old, 0 of 50 the same as before
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile robosuite==1.5.2 mujoco==3.3.0 numpy==1.26.4 h5py==3.16.0 packaging==26.4
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import contextlib
import io

import numpy as np

with contextlib.redirect_stdout(io.StringIO()):  # notices about optional packages
    import robosuite
    from robosuite.utils.observables import sensor

STEPS = 50


def episode(name, frequency, reads=0):
    """Play random actions. Return the frequency, the smallest and the largest age in ms, and the number of repeated observations."""
    options = {"has_renderer": False, "has_offscreen_renderer": False, "use_camera_obs": False, "seed": 0}
    with contextlib.redirect_stdout(io.StringIO()):
        env = robosuite.make("Lift", robots="Panda", control_freq=frequency, **options)
        obs = env.reset()

    @sensor(modality="robot0_proprio")
    def clock(cache):
        return np.full(2, env.sim.data.time)

    env.modify_observable("robot0_gripper_qpos", "sensor", clock)  # two numbers that become the time of the measurement
    for _ in range(reads):
        env._get_observations(force_update=True)
    random, (low, high), start = np.random.default_rng(0), env.action_spec, env.sim.data.time
    ages, repeats = [], 0
    for _ in range(STEPS):
        before, begin = obs["robot0_joint_pos"], env.sim.data.time
        obs, *_ = env.step(random.uniform(low, high))
        same = np.array_equal(obs["robot0_joint_pos"], before)
        measured = begin if same and not ages else obs["robot0_gripper_qpos"][0]  # the first one may come from the reset
        ages.append(round(1000 * (env.sim.data.time - measured)))
        repeats += same
        current = env.sim.data.qpos[env.robots[0]._ref_joint_pos_indexes]
        assert np.array_equal(obs["robot0_joint_pos"], current) == (ages[-1] == 0)
    rate = STEPS / (env.sim.data.time - start)
    env.close()
    age = f"{min(ages)} to {max(ages)} ms old"
    print(f"{name}: {rate:.1f} Hz in the simulation, observation {age}, {repeats} of {STEPS} the same as before")
    return round(rate, 1), min(ages), max(ages), repeats > 0


results = [episode(f"{frequency} Hz", frequency) for frequency in (20, 30, 40)]
results.append(episode("20 Hz, 10 forced observations after the reset", 20, reads=10))
raise SystemExit(results != [(20.0, 0, 0, False), (31.2, 0, 32, True), (41.7, 0, 24, True), (20.0, 20, 20, False)])
PYTHON

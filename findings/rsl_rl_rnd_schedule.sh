#!/usr/bin/env bash
# RSL-RL's weight schedule of the RND reward scales only the first weight by the time step, so that a decay can rise, and it restarts at a load.
#
# Versions: RSL-RL 5.5.1, TensorDict 0.15.3, PyTorch 2.13.0, NumPy 2.4.6.
#
# The documentation has "weight: initial weight of the RND reward" and "final_value: final value of the weight parameter", and Isaac Lab says of
# the linear schedule that it "decays the weight". One expects a line between two numbers of one unit. The first one is multiplied by
# env.unwrapped.step_dt, the control period in seconds. The second one is not, in the linear schedule and in the one with a single step.
# The schedule counts the steps in an attribute that no checkpoint has. runner.load() restores the networks and the optimizer of RND and the
# iteration, and the counter begins with 0 again.
# Here, the weight is to fall from 1 to 0.1 within 100 steps, at 50 Hz, as for a legged robot: it rises from 0.02 to 0.1. A run that was saved
# at step 60 goes on after the load as a new run does. The number of the iteration goes on.
# Consequence: a run that should explore at first and then follow the task gets more curious with time. The ratio of both weights depends on
# the frequency of the controller. Each resume repeats the schedule. Multiply final_value by the time step, and set alg.rnd.update_counter
# after a load. With a period of 1 second and no load, the schedule is right.
#
# Output:
#   weight after steps 10, 40, 70, 100, period 1.00 s: 0.910 0.640 0.370 0.100
#   weight after steps 10, 40, 70, 100, period 0.02 s: 0.028 0.052 0.076 0.100
#   period 1.00 s, 10 steps after step 60: same run 0.370, saved and loaded 0.910, iteration of both 5
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0
"$folder/venv/bin/pip" install -qq --no-compile rsl-rl-lib==5.5.1 tensordict==0.15.3 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import contextlib
import io

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

torch.set_num_threads(1)


class Plain(VecEnv):
    """Two environments with random observations and no reward."""

    num_envs, num_actions, max_episode_length, device, cfg = 2, 1, 1000, "cpu", {}

    def __init__(self, step_dt):
        self.step_dt = step_dt
        self.episode_length_buf = torch.zeros(2, dtype=torch.long)

    @property
    def unwrapped(self):
        return self

    def get_observations(self):
        return TensorDict({"state": torch.rand(2, 1)}, batch_size=[2])

    def step(self, actions):
        return self.get_observations(), torch.zeros(2), torch.zeros(2, dtype=torch.long), {}


def create(step_dt):
    """Return a runner with 10 steps per iteration, whose weight is to fall from 1 to 0.1 within 100 steps."""
    schedule = {"mode": "linear", "initial_step": 0, "final_step": 100, "final_value": 0.1}
    rnd = {"num_outputs": 1, "predictor_hidden_dims": [4], "target_hidden_dims": [4], "weight": 1.0, "weight_schedule": schedule}
    policy = {"class_name": "MLPModel", "hidden_dims": [4]}
    config = {
        "num_steps_per_env": 10,
        "save_interval": 1000,
        "obs_groups": {"actor": ["state"], "critic": ["state"], "rnd_state": ["state"]},
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 1, "num_mini_batches": 1, "rnd_cfg": rnd},
        "actor": policy | {"distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": dict(policy),
    }
    with contextlib.redirect_stdout(io.StringIO()):
        return OnPolicyRunner(Plain(step_dt), config)


def learn(runner, iterations):
    """Let a runner learn, and return the weight of its last step."""
    with contextlib.redirect_stdout(io.StringIO()):
        runner.learn(iterations)
    return runner.alg.rnd.weight


lines = {}
for period in (1.0, 0.02):
    runner = create(period)
    lines[period] = [round(learn(runner, iterations), 3) for iterations in (1, 3, 3, 3)]
    print(f"weight after steps 10, 40, 70, 100, period {period:.2f} s:", *(f"{weight:.3f}" for weight in lines[period]))
run, resumed = create(1.0), create(1.0)
learn(run, 6)
run.save("model.pt")
resumed.load("model.pt")
weights = [round(learn(runner, 1), 3) for runner in (run, resumed)]
iterations = {run.current_learning_iteration, resumed.current_learning_iteration}
print(f"period 1.00 s, 10 steps after step 60: same run {weights[0]:.3f}, saved and loaded {weights[1]:.3f}, iteration of both", *iterations)
seen = lines == {1.0: [0.91, 0.64, 0.37, 0.1], 0.02: [0.028, 0.052, 0.076, 0.1]}
raise SystemExit(not (seen and weights == [0.37, 0.91] and len(iterations) == 1))
PYTHON

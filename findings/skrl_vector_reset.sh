#!/usr/bin/env bash
# skrl stores the automatic reset of a vector environment as a transition: from the last state of an episode to the first one of the next.
#
# Versions: skrl 2.1.1, PyTorch 2.13.0, Gymnasium 1.4.0.
#
# Since Gymnasium 1.0, the step after an episode resets its environment: it ignores the action and returns the reward 0. One expects a library
# that accepts gymnasium.make_vec to leave these steps out of its replay memory. skrl's trainer stores each of them like any other, for all
# algorithms: TD3 learns that the last state leads to an initial state, for every action and for the best reward that Pendulum has. This state
# is the one that it bootstraps from after a time limit. A pendulum turns by at most 8 rad/s * 0.05 s = 0.4 rad per step. The turns of these
# transitions go up to half a circle, and only resets that happen to start nearby have less.
# With AutoresetMode.SAME_STEP there is no such step, but the next observation of each last transition is the first one of the next episode.
# One environment that is not vectorized is stored correctly.
# Consequence: each episode adds a transition that no action can cause. Short episodes suffer most, and nothing is logged.
#
# Output:
#   default of make_vec: 2040 transitions of 40 episodes, 40 with reward 0, more than 25 turn by more than 0.4 rad
#   SAME_STEP: 2040 transitions of 40 episodes, 0 with reward 0, more than 25 turn by more than 0.4 rad
#   not vectorized: 510 transitions of 10 episodes, 0 with reward 0, 0 turn by more than 0.4 rad
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 skrl==2.1.1 gymnasium==1.4.0 numpy==2.4.6
cd "$folder" # skrl may write its logs into the working directory
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import logging

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode
from skrl.agents.torch.td3 import TD3, TD3_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer

logging.getLogger("skrl").setLevel(logging.ERROR)
STEPS, LIMIT = 510, 50
NAMES = "policy", "target_policy", "critic_1", "critic_2", "target_critic_1", "target_critic_2"


class Network(DeterministicMixin, Model):
    def __init__(self, env, inputs):
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.layer = torch.nn.Linear(inputs, 1)

    def compute(self, inputs, role):
        return self.layer(inputs["observations"]), {}


def play(name, env):
    """Collect random transitions with skrl's trainer, and return how many have reward 0 and how many turn too far."""
    env = wrap_env(env, verbose=False)
    memory = RandomMemory(memory_size=STEPS, num_envs=env.num_envs, device="cpu")
    cfg = TD3_CFG(random_timesteps=STEPS, learning_starts=STEPS)
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    agent = TD3(models={part: Network(env, 3) for part in NAMES}, memory=memory, cfg=cfg, device="cpu", **spaces)
    SequentialTrainer(env=env, agents=agent, cfg={"timesteps": STEPS, "disable_progressbar": True}).train()
    now, after = (memory.get_tensor_by_name(key).reshape(-1, 3) for key in ("observations", "next_observations"))
    zero = int((memory.get_tensor_by_name("rewards") == 0).sum())
    cosine = (now[:, :2] * after[:, :2]).sum(1).clamp(-1, 1)
    far, episodes = int((torch.arccos(cosine) > 0.41).sum()), env.num_envs * (STEPS // LIMIT)
    turns = "more than 25" if far > 25 else far  # the number depends on the initial states
    print(f"{name}: {len(now)} transitions of {episodes} episodes, {zero} with reward 0, {turns} turn by more than 0.4 rad")
    return zero, far


limit = {"max_episode_steps": LIMIT}
same = {"autoreset_mode": AutoresetMode.SAME_STEP}
default = play("default of make_vec", gym.make_vec("Pendulum-v1", num_envs=4, **limit))
moved = play("SAME_STEP", gym.make_vec("Pendulum-v1", num_envs=4, vectorization_mode="sync", vector_kwargs=same, **limit))
single = play("not vectorized", gym.make("Pendulum-v1", **limit))
raise SystemExit(not (default[0] == 40 and default[1] > 25 and moved[0] == 0 and moved[1] > 25 and single == (0, 0)))
PYTHON

#!/usr/bin/env bash
# Checkpoints of SAC in skrl and in rl_games hold the optimizer of the temperature, but not the temperature.
#
# Versions: skrl 2.1.1, rl-games 1.6.5, PyTorch 2.13.0, Gymnasium 1.4.0, NumPy 2.4.6.
#
# One expects that an agent that is loaded goes on with the entropy coefficient that it has learned. Both libraries save the networks and all
# optimizers, and the Adam of the coefficient is restored with its number of steps and its moments. The coefficient itself is a tensor that is
# in neither checkpoint. After a load it has its initial value again: initial_entropy_value in skrl and init_alpha in rl_games, 1.0 in the
# configurations that come with rl_games. Nothing is reported, and no entry is missing for the loader.
# Here, both agents learn on random transitions until the coefficient has fallen from 1.0, and a new agent loads the checkpoint.
# Consequence: after a resume, the targets of the critics and the loss of the actor have the entropy with its first weight until the coefficient
# has fallen again. Save the tensor (log_entropy_coefficient or log_alpha) as well, and copy it back into the same tensor.
#
# Output:
#   skrl: coefficient 1.000 at first, below 0.3 when saved, 1.000 after the load; steps of its optimizer 300, then 300
#   rl_games: coefficient 1.000 at first, below 0.3 when saved, 1.000 after the load; steps of its optimizer 300, then 300
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0
"$folder/venv/bin/pip" install -qq --no-compile skrl==2.1.1 rl-games==1.6.5 gymnasium==1.4.0 numpy==2.4.6
cd "$folder" # both write logs into the working directory
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import contextlib
import io
import logging

import gymnasium as gym
import torch
from rl_games.algos_torch.sac_agent import SACAgent
from rl_games.common import env_configurations, vecenv
from rl_games.torch_runner import Runner
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model

logging.getLogger("skrl").setLevel(logging.ERROR)
torch.set_num_threads(1)
UPDATES, ROWS, RATE = 300, 256, 1e-2
SPACES = {"observation_space": gym.spaces.Box(-1, 1, (3,)), "action_space": gym.spaces.Box(-1, 1, (1,))}


class Actor(GaussianMixin, Model):
    def __init__(self):
        Model.__init__(self, device="cpu", **SPACES)
        GaussianMixin.__init__(self, clip_log_std=True)
        self.layer = torch.nn.Linear(3, 1)

    def compute(self, inputs, role):
        return self.layer(inputs["observations"]), {"log_std": torch.zeros(1)}


class Critic(DeterministicMixin, Model):
    def __init__(self):
        Model.__init__(self, device="cpu", **SPACES)
        DeterministicMixin.__init__(self)
        self.layer = torch.nn.Linear(4, 1)

    def compute(self, inputs, role):
        return self.layer(torch.cat([inputs["observations"], inputs["taken_actions"]], 1)), {}


class Library:
    """An agent of one of the libraries, with a filled replay buffer."""

    def __init__(self):
        torch.manual_seed(0)
        self.rows = [torch.rand(ROWS, 3), torch.rand(ROWS, 1) * 2 - 1, torch.rand(ROWS, 1), torch.rand(ROWS, 3)]
        self.build()

    def state(self):
        tensor, optimizer = self.parts()
        steps = [int(part["step"]) for part in optimizer.state_dict()["state"].values()]
        return round(tensor.exp().item(), 3), *steps


class Skrl(Library):
    name = "skrl"

    def build(self):
        cfg = SAC_CFG(initial_entropy_value=1.0, learn_entropy=True, learning_rate=RATE)
        cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
        critics = "critic_1", "critic_2", "target_critic_1", "target_critic_2"
        memory = RandomMemory(memory_size=ROWS, num_envs=1, device="cpu")
        models = {"policy": Actor(), **{critic: Critic() for critic in critics}}
        self.agent = SAC(models=models, memory=memory, cfg=cfg, device="cpu", **SPACES)
        self.agent.init()
        names = "observations", "actions", "rewards", "next_observations"
        memory.add_samples(**dict(zip(names, self.rows)), terminated=torch.zeros(ROWS, 1, dtype=torch.bool))

    def update(self):
        self.agent.update(timestep=0, timesteps=UPDATES)

    def parts(self):
        return self.agent.log_entropy_coefficient, self.agent.entropy_optimizer

    def pass_on(self, other):
        self.agent.save("skrl.pt")
        other.agent.load("skrl.pt")


class Vector(vecenv.IVecEnv):
    def get_env_info(self):
        return SPACES


class RlGames(Library):
    name = "rl_games"

    def build(self):
        net = {"name": "soft_actor_critic", "separate": True, "space": {"continuous": None}, "log_std_bounds": [-5, 2]}
        net["mlp"] = {"units": [16], "activation": "relu", "initializer": {"name": "default"}}
        config = {"name": "test", "env_name": "test", "device": "cpu", "reward_shaper": {"scale_value": 1.0}, "init_alpha": 1.0}
        config |= {"alpha_lr": RATE, "actor_lr": RATE, "critic_lr": RATE, "batch_size": 64, "learnable_temperature": True}
        config |= {"policy_frequency": 1, "replay_buffer_size": ROWS, "num_actors": 1}
        algo = {"algo": {"name": "sac"}, "model": {"name": "soft_actor_critic"}, "network": net, "config": config}
        runner = Runner()
        runner.load({"params": {"seed": 0, **algo}})
        self.agent = SACAgent(base_name="run", params=runner.params)
        self.agent.replay_buffer.add(*self.rows, torch.zeros(ROWS, 1, dtype=torch.bool))

    def update(self):
        self.agent.update(0)

    def parts(self):
        return self.agent.log_alpha, self.agent.log_alpha_optimizer

    def pass_on(self, other):
        self.agent.save("rl_games")
        other.agent.restore("rl_games.pth")


def resume(library):
    """Learn, save and load, and return the coefficient and the steps of its optimizer at each of these points."""
    with contextlib.redirect_stdout(io.StringIO()):
        old, new = library(), library()
        first = old.state()
        for _ in range(UPDATES):
            old.update()
        saved = old.state()
        old.pass_on(new)
        loaded = new.state()
    text = "below 0.3" if saved[0] < 0.3 else f"{saved[0]:.3f}"
    print(f"{library.name}: coefficient {first[0]:.3f} at first, {text} when saved, {loaded[0]:.3f} after the load;", end=" ")
    print(f"steps of its optimizer {saved[1]}, then {loaded[1]}")
    return first[0] == loaded[0] == 1 and saved[0] < 0.3 and saved[1:] == loaded[1:] == (UPDATES,)


vecenv.register("TEST", lambda config_name, num_actors, **kwargs: Vector())
env_configurations.register("test", {"vecenv_type": "TEST", "env_creator": None})
raise SystemExit(not all([resume(Skrl), resume(RlGames)]))
PYTHON

#!/usr/bin/env bash
# The evaluation of skrl explores: it begins with `random_timesteps` random actions, and TD3 and DDPG add their noise to the rest.
#
# Versions: skrl 2.1.1, PyTorch 2.13.0, Gymnasium 1.4.0, NumPy 2.4.6.
#
# One expects trainer.eval() to play the policy. stochastic_evaluation, which is off by default, is documented as "Whether to use actions rather
# than (deterministic) mean actions during evaluation". eval() counts its steps from 0 and asks the agent for actions in the same way as
# train() does. The agents compare this step with random_timesteps, whether they are in training mode or not, so an evaluation that is not
# longer than the warm-up is a random policy, in SAC too. A deterministic policy gives no mean actions, so TD3 and DDPG are evaluated with
# exploration noise. With an exploration_scheduler, the noise is that of the first steps of the training.
# Here, the policy is a controller that swings the pendulum up. Its mean return is above -300, and that of random actions below -600.
# Consequence: the return and the video of a trained agent are those of random actions, and comparisons of TD3 with SAC or PPO in skrl compare
# a noisy policy with a deterministic one. Evaluate with a configuration that has random_timesteps=0 and no exploration_noise.
#
# Output:
#   TD3, warm-up of 1000 steps, noise 0.5: 1000 of 1000 actions of the evaluation are not those of the policy, mean return below -600
#   TD3, warm-up of 400 steps, noise 0.5: more than 900 of 1000 actions of the evaluation are not those of the policy
#   SAC, warm-up of 400 steps: 400 of 1000 actions of the evaluation are not those of the policy
#   TD3, neither: 0 of 1000 actions of the evaluation are not those of the policy, mean return above -300
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0
"$folder/venv/bin/pip" install -qq --no-compile skrl==2.1.1 gymnasium==1.4.0 numpy==2.4.6
cd "$folder" # skrl may write its logs into the working directory
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import logging

import gymnasium as gym
import numpy as np
import torch
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.agents.torch.td3 import TD3, TD3_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.resources.noises.torch import GaussianNoise
from skrl.trainers.torch import SequentialTrainer

logging.getLogger("skrl").setLevel(logging.ERROR)
torch.manual_seed(0)
STEPS = 1000


def control(obs):
    """Return the torques that pump energy into a pendulum and hold it upright."""
    cosine, sine, speed = obs.T
    energy = speed**2 / 2 + 15 * (cosine - 1)
    swing = -torch.sign(speed) * torch.sign(energy) * energy.abs().clamp(max=2)
    hold = -10 * torch.atan2(sine, cosine) - 3 * speed
    return torch.where(cosine > 0.8, hold, swing).clamp(-2, 2)[:, None]


class Actor(DeterministicMixin, Model):
    def __init__(self, **spaces):
        Model.__init__(self, device="cpu", **spaces)
        DeterministicMixin.__init__(self)
        self.unused = torch.nn.Linear(1, 1)

    def compute(self, inputs, role):
        return control(inputs["observations"]), {}


class RandomActor(GaussianMixin, Model):
    def __init__(self, **spaces):
        Model.__init__(self, device="cpu", **spaces)
        GaussianMixin.__init__(self)
        self.unused = torch.nn.Linear(1, 1)

    def compute(self, inputs, role):
        return control(inputs["observations"]), {"log_std": torch.zeros(1)}


class Record(gym.Wrapper):
    """Compare the actions that are played with those of the controller."""

    def reset(self, **kwargs):
        self.obs, info = self.env.reset(seed=len(self.rewards))
        return self.obs, info

    def step(self, action):
        wanted = control(torch.as_tensor(self.obs)[None]).numpy()[0]
        self.other.append(not np.array_equal(action, wanted))
        self.obs, reward, *flags, info = self.env.step(action)
        self.rewards.append(reward)
        return self.obs, reward, *flags, info


def evaluate(name, kind, cfg, actor, limit=None):
    """Evaluate with skrl's trainer, and return how many actions are not those of the policy and the mean return."""
    env = Record(gym.make("Pendulum-v1"))
    env.other, env.rewards = [], []
    wrapped = wrap_env(env, verbose=False)
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    spaces = {"observation_space": wrapped.observation_space, "action_space": wrapped.action_space}
    agent = kind(models={"policy": actor(**spaces)}, memory=None, cfg=cfg, device="cpu", **spaces)
    trainer = {"timesteps": STEPS, "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=wrapped, agents=agent, cfg=trainer).eval()
    assert not agent.training
    other, value = sum(env.other), sum(env.rewards) / (STEPS / 200)
    number = "more than 900" if 900 < other < STEPS else other  # noise beyond the bounds can end at the action of the policy
    text = "" if limit is None else f", mean return {'above' if value > limit else 'below'} {limit}"
    print(f"{name}: {number} of {len(env.other)} actions of the evaluation are not those of the policy{text}")
    return other, value


noise = {"exploration_noise": GaussianNoise, "exploration_noise_kwargs": {"mean": 0, "std": 0.5, "device": "cpu"}}
long = evaluate("TD3, warm-up of 1000 steps, noise 0.5", TD3, TD3_CFG(random_timesteps=1000, **noise), Actor, -600)
short = evaluate("TD3, warm-up of 400 steps, noise 0.5", TD3, TD3_CFG(random_timesteps=400, **noise), Actor)
sac = evaluate("SAC, warm-up of 400 steps", SAC, SAC_CFG(random_timesteps=400), RandomActor)
pure = evaluate("TD3, neither", TD3, TD3_CFG(), Actor, -300)
raise SystemExit(not (long[0] == STEPS and long[1] < -600 and short[0] > 900 and sac[0] == 400 and pure[0] == 0 and pure[1] > -300))
PYTHON

"""CleanRL-style loop (https://github.com/vwxyzjn/cleanrl), reimplemented: one file, PyTorch, a TensorBoard writer."""

import itertools
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.tensorboard.writer import SummaryWriter

from benchmarks.baselines.numpy_replay import NumpyReplay
from benchmarks.clock import Clock, stopwatch
from benchmarks.workloads import WARMUP_STEPS, Workload


class QNetwork(nn.Module):
    """One critic."""

    def __init__(self, obs_dim: int, action_dim: int, workload: Workload) -> None:
        super().__init__()
        first, second = workload.hidden_dims
        self.fc1 = nn.Linear(obs_dim + action_dim, first)
        self.fc2 = nn.Linear(first, second)
        self.fc3 = nn.Linear(second, 1)
        self.norm1, self.norm2 = make_norms(workload)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return Q-values (batch, 1)."""
        hidden = F.relu(self.norm1(self.fc1(torch.cat([obs, action], 1))))
        value: Tensor = self.fc3(F.relu(self.norm2(self.fc2(hidden))))
        return value


class Actor(nn.Module):
    """The policy."""

    def __init__(self, obs_dim: int, low: Tensor, high: Tensor, workload: Workload) -> None:
        super().__init__()
        first, second = workload.hidden_dims
        self.fc1 = nn.Linear(obs_dim, first)
        self.fc2 = nn.Linear(first, second)
        self.fc3 = nn.Linear(second, len(low))
        self.norm1, self.norm2 = make_norms(workload)
        self.scale, self.bias = (high - low) / 2, (high + low) / 2

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions (batch, action_dim)."""
        hidden = F.relu(self.norm1(self.fc1(obs)))
        hidden = F.relu(self.norm2(self.fc2(hidden)))
        return torch.tanh(self.fc3(hidden)) * self.scale + self.bias


def make_norms(workload: Workload) -> list[nn.Module]:
    """Create one LayerNorm for each hidden layer, or identities for a workload without LayerNorm."""
    return [nn.LayerNorm(width) if workload.layer_norm else nn.Identity() for width in workload.hidden_dims]


class Agent:
    """TD3 as CleanRL writes it.

    Args:
        obs_dim: Size of an observation.
        low: Lower bounds of the action.
        high: Upper bounds of the action.
        workload: The hyperparameters.
    """

    def __init__(self, obs_dim: int, low: Tensor, high: Tensor, workload: Workload) -> None:
        self.low, self.high, self.workload, self.updates = low, high, workload, 0
        self.actor, self.actor_target = (Actor(obs_dim, low, high, workload) for _ in range(2))
        critics = (QNetwork(obs_dim, len(low), workload) for _ in range(4))
        self.qf1, self.qf2, self.qf1_target, self.qf2_target = critics
        self.pairs = [(self.actor, self.actor_target), (self.qf1, self.qf1_target), (self.qf2, self.qf2_target)]
        for online, target in self.pairs:
            target.load_state_dict(online.state_dict())
        self.q_optimizer = self.make_optimizer([*self.qf1.parameters(), *self.qf2.parameters()])
        self.actor_optimizer = self.make_optimizer(self.actor.parameters())
        self.losses: dict[str, Tensor] = {}

    def make_optimizer(self, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Create Adam with PyTorch's defaults."""
        return torch.optim.Adam(weights, lr=self.workload.lr)

    @torch.no_grad()
    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return one action with exploration noise."""
        mean = self.actor(torch.Tensor(obs[None]))
        noisy = mean + torch.normal(0, self.actor.scale * self.workload.exploration_noise)
        action: NDArray[Any] = noisy[0].numpy().clip(self.low.numpy(), self.high.numpy())
        return action

    def update(self, batch: Iterable[Tensor]) -> None:
        """Make one update from obs, action, next_obs, reward and terminated, each (batch, size)."""
        obs, action, next_obs, reward, terminated = batch
        target = self.td_target(next_obs, reward, terminated)
        q1, q2 = self.qf1(obs, action), self.qf2(obs, action)
        q_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.q_optimizer.zero_grad()
        q_loss.backward()
        self.q_optimizer.step()
        self.losses |= {"qf1_values": q1, "qf2_values": q2, "qf_loss": q_loss}
        self.updates += 1
        if self.updates % self.workload.policy_freq == 0:
            self.update_actor(obs)
            self.update_targets()

    @torch.no_grad()
    def td_target(self, next_obs: Tensor, reward: Tensor, terminated: Tensor) -> Tensor:
        """Return the TD target (batch, 1)."""
        settings, scale = self.workload, self.actor_target.scale
        noise = torch.randn(len(next_obs), len(scale)) * settings.policy_noise
        noise = noise.clamp(-settings.noise_clip, settings.noise_clip) * scale
        next_action = torch.clamp(self.actor_target(next_obs) + noise, self.low, self.high)
        next_q = torch.min(self.qf1_target(next_obs, next_action), self.qf2_target(next_obs, next_action))
        return reward + (1 - terminated) * settings.gamma * next_q

    def update_actor(self, obs: Tensor) -> None:
        """Take one gradient step of the actor."""
        loss = -self.qf1(obs, self.actor(obs)).mean()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        self.losses["actor_loss"] = loss

    def update_targets(self) -> None:
        """Take one Polyak step of the targets."""
        tau = self.workload.tau
        for online, target in self.pairs:
            for weight, average in zip(online.parameters(), target.parameters(), strict=True):
                average.data.copy_(tau * weight.data + (1 - tau) * average.data)


def train(workload: Workload, flags: list[str], agent_class: type[Agent] = Agent) -> None:
    """Run the training loop without end."""
    env: Any = Clock(workload.make_env())
    box = env.action_space
    agent = agent_class(env.observation_space.shape[0], torch.tensor(box.low), torch.tensor(box.high), workload)
    replay = NumpyReplay(env, workload.capacity)
    writer: Any = SummaryWriter("runs")
    stopwatch().watch(lambda: agent.updates, replay.transition_bytes)

    start = time.time()
    obs, _ = env.reset(seed=0)
    for step in itertools.count(1):
        action = box.sample() if step <= WARMUP_STEPS else agent.act(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs=obs, action=action, next_obs=next_obs, reward=reward, terminated=terminated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step <= WARMUP_STEPS:
            continue
        agent.update(map(torch.from_numpy, replay.sample(workload.batch_size)))
        if step % 100 == 0:
            for name, values in agent.losses.items():
                writer.add_scalar(f"losses/{name}", values.mean().item(), step)
            steps_per_second = int(step / (time.time() - start))
            writer.add_scalar("charts/SPS", steps_per_second, step)
            print("SPS:", steps_per_second, np.round(agent.losses["qf_loss"].item(), 3))

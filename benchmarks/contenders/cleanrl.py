"""CleanRL's way (https://github.com/vwxyzjn/cleanrl): one file, torch, a TensorBoard writer. Written anew."""

import itertools
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.tensorboard.writer import SummaryWriter

from benchmarks.clock import Clock, stopwatch
from benchmarks.contenders.plain import ArraysReplay
from benchmarks.workloads import WARMUP_STEPS, Workload


class QNetwork(nn.Module):
    """One critic."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_dims: tuple[int, ...]) -> None:
        super().__init__()
        self.fc1 = nn.Linear(obs_dim + action_dim, hidden_dims[0])
        self.fc2 = nn.Linear(hidden_dims[0], hidden_dims[1])
        self.fc3 = nn.Linear(hidden_dims[1], 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Q-values (batch, 1)."""
        hidden = F.relu(self.fc1(torch.cat([obs, action], 1)))
        value: Tensor = self.fc3(F.relu(self.fc2(hidden)))
        return value


class Actor(nn.Module):
    """The policy."""

    def __init__(self, obs_dim: int, low: Tensor, high: Tensor, hidden_dims: tuple[int, ...]) -> None:
        super().__init__()
        self.fc1 = nn.Linear(obs_dim, hidden_dims[0])
        self.fc2 = nn.Linear(hidden_dims[0], hidden_dims[1])
        self.fc3 = nn.Linear(hidden_dims[1], len(low))
        self.scale, self.bias = (high - low) / 2, (high + low) / 2

    def forward(self, obs: Tensor) -> Tensor:
        """Actions (batch, action_dim)."""
        hidden = F.relu(self.fc2(F.relu(self.fc1(obs))))
        return torch.tanh(self.fc3(hidden)) * self.scale + self.bias


def train(workload: Workload, flags: list[str]) -> None:
    """Learns for ever."""
    env: Any = Clock(workload.make_env())
    box = env.action_space
    low, high = torch.tensor(box.low), torch.tensor(box.high)
    obs_dim, action_dim = env.observation_space.shape[0], len(low)
    actor, actor_target = (Actor(obs_dim, low, high, workload.hidden_dims) for _ in range(2))
    qf1, qf2, qf1_target, qf2_target = (QNetwork(obs_dim, action_dim, workload.hidden_dims) for _ in range(4))
    pairs = [(actor, actor_target), (qf1, qf1_target), (qf2, qf2_target)]
    for online, target in pairs:
        target.load_state_dict(online.state_dict())
    q_optimizer = torch.optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=workload.lr)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=workload.lr)
    replay = ArraysReplay(env, workload.capacity)
    writer: Any = SummaryWriter("runs")
    updates = 0
    stopwatch().watch(lambda: updates, replay.transition_bytes)

    begun = time.time()
    obs, _ = env.reset(seed=0)
    for step in itertools.count(1):
        if step <= WARMUP_STEPS:
            action = box.sample()
        else:
            with torch.no_grad():
                noisy = actor(torch.Tensor(obs[None])) + torch.normal(0, actor.scale * workload.exploration_noise)
            action = noisy[0].numpy().clip(box.low, box.high)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs=obs, action=action, next_obs=next_obs, reward=reward, terminated=terminated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step <= WARMUP_STEPS:
            continue

        o, a, o2, r, end = map(torch.from_numpy, replay.sample(workload.batch_size))
        with torch.no_grad():
            noise = torch.randn_like(a) * workload.policy_noise
            noise = noise.clamp(-workload.noise_clip, workload.noise_clip) * actor_target.scale
            a2 = torch.clamp(actor_target(o2) + noise, low, high)
            least = torch.min(qf1_target(o2, a2), qf2_target(o2, a2))
            q_target = r + (1 - end) * workload.gamma * least
        q1, q2 = qf1(o, a), qf2(o, a)
        q_loss = F.mse_loss(q1, q_target) + F.mse_loss(q2, q_target)
        q_optimizer.zero_grad()
        q_loss.backward()
        q_optimizer.step()
        updates += 1
        if updates % workload.policy_freq == 0:
            actor_loss = -qf1(o, actor(o)).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            for online, target in pairs:
                for weight, average in zip(online.parameters(), target.parameters(), strict=True):
                    average.data.copy_(workload.tau * weight.data + (1 - workload.tau) * average.data)
        if step % 100 == 0:
            writer.add_scalar("losses/qf1_values", q1.mean().item(), step)
            writer.add_scalar("losses/qf2_values", q2.mean().item(), step)
            writer.add_scalar("losses/qf_loss", q_loss.item() / 2, step)
            writer.add_scalar("losses/actor_loss", actor_loss.item(), step)
            writer.add_scalar("charts/SPS", int(step / (time.time() - begun)), step)
            print("SPS:", int(step / (time.time() - begun)), np.round(q_loss.item(), 3))

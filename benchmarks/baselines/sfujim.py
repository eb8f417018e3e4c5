"""Author's loop (https://github.com/sfujim/TD3), reimplemented: both critics in one module, a float64 replay buffer."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.baselines.numpy_replay import NumpyReplay
from benchmarks.clock import Clock, stopwatch
from benchmarks.workloads import WARMUP_STEPS, Workload


def layers(*widths: int) -> list[nn.Linear]:
    """Create one linear layer between each pair of neighboring widths."""
    return [nn.Linear(fan_in, fan_out) for fan_in, fan_out in itertools.pairwise(widths)]


class Actor(nn.Module):
    """The policy."""

    def __init__(self, obs_dim: int, action_dim: int, max_action: float, hidden_dims: tuple[int, ...]) -> None:
        super().__init__()
        self.l1, self.l2, self.l3 = layers(obs_dim, *hidden_dims, action_dim)
        self.max_action = max_action

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions (batch, action_dim)."""
        return self.max_action * torch.tanh(self.l3(F.relu(self.l2(F.relu(self.l1(obs))))))


class Critic(nn.Module):
    """The twin critics."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_dims: tuple[int, ...]) -> None:
        super().__init__()
        self.l1, self.l2, self.l3 = layers(obs_dim + action_dim, *hidden_dims, 1)
        self.l4, self.l5, self.l6 = layers(obs_dim + action_dim, *hidden_dims, 1)

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return both Q-values, (batch, 1) each."""
        return self.q1(obs, action), self.l6(F.relu(self.l5(F.relu(self.l4(torch.cat([obs, action], 1))))))

    def q1(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the Q-value of the first critic."""
        value: Tensor = self.l3(F.relu(self.l2(F.relu(self.l1(torch.cat([obs, action], 1))))))
        return value


class Agent:
    """TD3 as its author writes it."""

    def __init__(self, env: Any, workload: Workload) -> None:
        obs_dim, action_dim = env.observation_space.shape[0], env.action_space.shape[0]
        self.max_action = float(env.action_space.high[0])
        self.actor = Actor(obs_dim, action_dim, self.max_action, workload.hidden_dims)
        self.critic = Critic(obs_dim, action_dim, workload.hidden_dims)
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=workload.lr)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=workload.lr)
        self.workload, self.updates = workload, 0

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return one action without noise."""
        action: NDArray[Any] = self.actor(torch.FloatTensor(obs.reshape(1, -1))).cpu().data.numpy().flatten()
        return action

    def train(self, replay: NumpyReplay) -> None:
        """Make one update."""
        settings = self.workload
        obs, action, next_obs, reward, terminated = (
            torch.FloatTensor(field) for field in replay.sample(settings.batch_size)
        )
        with torch.no_grad():
            noise = (torch.randn_like(action) * settings.policy_noise).clamp(-settings.noise_clip, settings.noise_clip)
            next_action = (self.actor_target(next_obs) + noise).clamp(-self.max_action, self.max_action)
            target = reward + (1 - terminated) * settings.gamma * torch.min(*self.critic_target(next_obs, next_action))
        q1, q2 = self.critic(obs, action)
        critic_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        self.updates += 1
        if self.updates % settings.policy_freq:
            return
        actor_loss = -self.critic.q1(obs, self.actor(obs)).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        for weight, average in self._weights():
            average.data.copy_(settings.tau * weight.data + (1 - settings.tau) * average.data)

    def _weights(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(self.critic.parameters(), self.critic_target.parameters(), strict=True)
        yield from zip(self.actor.parameters(), self.actor_target.parameters(), strict=True)


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    env: Any = Clock(workload.make_env())
    agent, replay = Agent(env, workload), NumpyReplay(env, workload.capacity, np.float64)
    stopwatch().watch(lambda: agent.updates, replay.transition_bytes)
    box, deviation = env.action_space, agent.max_action * workload.exploration_noise
    obs, _ = env.reset(seed=0)
    episode_return = 0.0
    for step in itertools.count(1):
        if step <= WARMUP_STEPS:
            action = box.sample()
        else:
            noise = np.random.normal(0, deviation, size=len(box.low))  # noqa: NPY002  # as in the original
            action = (agent.act(np.array(obs)) + noise).clip(box.low, box.high)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs=obs, action=action, next_obs=next_obs, reward=reward, terminated=terminated)
        obs, episode_return = next_obs, episode_return + float(reward)
        if step > WARMUP_STEPS:
            agent.train(replay)
        if terminated or truncated:
            print(f"Total T: {step} Reward: {episode_return:.3f}")
            obs, episode_return = env.reset()[0], 0.0

"""LeanRL-style loop (https://github.com/pytorch-labs/LeanRL), reimplemented: TensorDicts, critics stacked under vmap.

The flag "compiled" compiles both gradient steps and the policy. LeanRL's CUDA graphs do not apply to a CPU.
"""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict, from_module, from_modules
from torch import Tensor
from torchrl.data import LazyTensorStorage, ReplayBuffer
from tqdm import tqdm

from benchmarks.baselines.cleanrl import Actor, QNetwork
from benchmarks.clock import Clock, stopwatch
from benchmarks.workloads import WARMUP_STEPS, Workload

Step = Callable[[Any], Tensor]


class Weights:
    """The networks and their weights as TensorDicts."""

    def __init__(self, env: Any, workload: Workload) -> None:
        self.low, self.high = torch.tensor(env.action_space.low), torch.tensor(env.action_space.high)
        obs_dim, action_dim = env.observation_space.shape[0], len(self.low)
        self.actor = Actor(obs_dim, self.low, self.high, workload)
        self.actor_target = copy.deepcopy(self.actor).requires_grad_(False)
        self.actor_weights, self.actor_average = from_module(self.actor).data, from_module(self.actor_target).data
        critics = [QNetwork(obs_dim, action_dim, workload) for _ in range(2)]
        self.q_weights = from_modules(*critics, as_module=True)
        self.q_average = self.q_weights.data.clone()
        with torch.device("meta"):
            self.critic = QNetwork(obs_dim, action_dim, workload)

    def average(self, tau: float) -> None:
        """Take one Polyak step of the targets."""
        self.actor_average.lerp_(self.actor_weights, tau)
        self.q_average.lerp_(self.q_weights.data, tau)


class Learner:
    """The gradient steps; each returns its loss for a batch."""

    def __init__(self, weights: Weights, workload: Workload) -> None:
        self.weights, self.workload = weights, workload
        self.q_optimizer = torch.optim.Adam(weights.q_weights.parameters(), lr=workload.lr)
        self.actor_optimizer = torch.optim.Adam(weights.actor.parameters(), lr=workload.lr)

    def critics_step(self, batch: TensorDict) -> Tensor:
        """Take one gradient step of the critics."""
        self.q_optimizer.zero_grad()
        with torch.no_grad():
            target = self.td_target(batch)
        losses = torch.vmap(self._q_loss, (0, None, None, None))(
            self.weights.q_weights, batch["observations"], batch["actions"], target
        )
        losses.sum().backward()
        self.q_optimizer.step()
        return losses.detach().sum()

    def td_target(self, batch: TensorDict) -> Tensor:
        """Return the TD target (batch,)."""
        weights, bound = self.weights, self.workload.noise_clip
        noise = torch.randn_like(batch["actions"]) * self.workload.policy_noise
        noise = noise.clamp(-bound, bound) * weights.actor.scale
        action = (weights.actor_target(batch["next_observations"]) + noise).clamp(weights.low, weights.high)
        q = torch.vmap(self._q_value, (0, None, None))(weights.q_average, batch["next_observations"], action)
        return batch["rewards"] + ~batch["terminations"] * self.workload.gamma * q.min(0).values

    def actor_step(self, batch: TensorDict) -> Tensor:
        """Take one gradient step of the actor."""
        weights, obs = self.weights, batch["observations"]
        self.actor_optimizer.zero_grad()
        with weights.q_weights.data[0].to_module(weights.critic):
            loss = -weights.critic(obs, weights.actor(obs)).mean()
        loss.backward()
        self.actor_optimizer.step()
        return loss.detach()

    def _q_value(self, one: Any, obs: Tensor, action: Tensor) -> Tensor:
        with one.to_module(self.weights.critic):
            return self.weights.critic(obs, action).view(-1)  # type: ignore[no-any-return]

    def _q_loss(self, one: Any, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(self._q_value(one, obs, action), target)


def make_transition(obs: Any, action: Tensor, next_obs: Any, reward: Any, terminated: bool, done: bool) -> TensorDict:
    """Return one transition with a batch dimension."""
    return TensorDict(
        observations=torch.as_tensor(obs)[None],
        next_observations=torch.as_tensor(next_obs)[None],
        actions=action[None],
        rewards=torch.tensor([float(reward)]),
        terminations=torch.tensor([terminated]),
        dones=torch.tensor([done]),
        batch_size=1,
    )


def explore(act: Step, obs: Any, weights: Weights, std: float) -> Tensor:
    """Return one action with exploration noise."""
    with torch.no_grad():
        action = act(torch.as_tensor(obs)[None])[0]
        action = action + torch.randn_like(action) * weights.actor.scale * std
        return action.clamp(weights.low, weights.high)


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    env: Any = Clock(workload.make_env())
    weights = Weights(env, workload)
    learner = Learner(weights, workload)
    critics_step: Step = learner.critics_step
    actor_step: Step = learner.actor_step
    act: Step = weights.actor
    replay = ReplayBuffer(storage=LazyTensorStorage(workload.capacity), batch_size=workload.batch_size)
    updates, box = 0, env.action_space
    obs, _ = env.reset(seed=0)
    for step in tqdm(itertools.count(1)):
        learning = step > WARMUP_STEPS
        action = explore(act, obs, weights, workload.exploration_noise) if learning else torch.as_tensor(box.sample())
        next_obs, reward, terminated, truncated, _ = env.step(action.numpy())
        transition = make_transition(obs, action, next_obs, reward, terminated, terminated or truncated)
        replay.extend(transition)
        if step == 1:
            stopwatch().watch(lambda: updates, transition.bytes())  # noqa: B023  # reads the latest value
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step == WARMUP_STEPS and "compiled" in flags:
            critics_step(replay.sample())  # torch 2.13 cannot compile it before its first run
            critics_step, actor_step, act = (torch.compile(function) for function in (critics_step, actor_step, act))
        if not learning:
            continue
        batch = replay.sample()
        q_loss = critics_step(batch)
        updates += 1
        if updates % workload.policy_freq == 0:
            actor_loss = actor_step(batch)
            weights.average(workload.tau)
        if step % 100 == 0:
            tqdm.write(f"{step}: q_loss {q_loss.item():.3f}, actor_loss {actor_loss.item():.3f}")

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


def make_steps(weights: Weights, workload: Workload) -> tuple[Step, Step]:
    """Create the gradient steps of the critics and of the actor; each returns its loss for a batch."""
    q_optimizer = torch.optim.Adam(weights.q_weights.parameters(), lr=workload.lr)
    actor_optimizer = torch.optim.Adam(weights.actor.parameters(), lr=workload.lr)
    actor, actor_target, critic = weights.actor, weights.actor_target, weights.critic
    q_weights, q_average, low, high = weights.q_weights, weights.q_average, weights.low, weights.high
    deviation, bound, gamma = workload.policy_noise, workload.noise_clip, workload.gamma

    def q_value(one: Any, obs: Tensor, action: Tensor) -> Tensor:
        with one.to_module(critic):
            return critic(obs, action).view(-1)  # type: ignore[no-any-return]

    def q_loss(one: Any, obs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(q_value(one, obs, action), target)

    def critics_step(batch: TensorDict) -> Tensor:
        q_optimizer.zero_grad()
        with torch.no_grad():
            noise = torch.randn_like(batch["actions"]) * deviation
            noise = noise.clamp(-bound, bound) * actor.scale
            action = (actor_target(batch["next_observations"]) + noise).clamp(low, high)
            q = torch.vmap(q_value, (0, None, None))(q_average, batch["next_observations"], action)
            target = batch["rewards"] + ~batch["terminations"] * gamma * q.min(0).values
        losses = torch.vmap(q_loss, (0, None, None, None))(q_weights, batch["observations"], batch["actions"], target)
        losses.sum().backward()
        q_optimizer.step()
        return losses.detach().sum()

    def actor_step(batch: TensorDict) -> Tensor:
        actor_optimizer.zero_grad()
        with q_weights.data[0].to_module(critic):
            loss = -critic(batch["observations"], actor(batch["observations"])).mean()
        loss.backward()
        actor_optimizer.step()
        return loss.detach()

    return critics_step, actor_step


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    env: Any = Clock(workload.make_env())
    weights = Weights(env, workload)
    critics_step, actor_step = make_steps(weights, workload)
    act: Step = weights.actor
    replay = ReplayBuffer(storage=LazyTensorStorage(workload.capacity), batch_size=workload.batch_size)
    updates, box = 0, env.action_space
    obs, _ = env.reset(seed=0)
    for step in tqdm(itertools.count(1)):
        if step <= WARMUP_STEPS:
            action = torch.as_tensor(box.sample())
        else:
            with torch.no_grad():
                action = act(torch.as_tensor(obs)[None])[0]
                action = action + torch.randn_like(action) * weights.actor.scale * workload.exploration_noise
                action = action.clamp(weights.low, weights.high)
        next_obs, reward, terminated, truncated, _ = env.step(action.numpy())
        transition = TensorDict(
            observations=torch.as_tensor(obs)[None],
            next_observations=torch.as_tensor(next_obs)[None],
            actions=action[None],
            rewards=torch.tensor([float(reward)]),
            terminations=torch.tensor([terminated]),
            dones=torch.tensor([terminated or truncated]),
            batch_size=1,
        )
        replay.extend(transition)
        if step == 1:
            stopwatch().watch(lambda: updates, transition.bytes())  # noqa: B023  # reads the latest value
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step == WARMUP_STEPS and "compiled" in flags:
            critics_step(replay.sample())  # torch 2.13 cannot compile it before its first run
            critics_step, actor_step, act = (torch.compile(function) for function in (critics_step, actor_step, act))
        if step <= WARMUP_STEPS:
            continue
        batch = replay.sample()
        q_loss = critics_step(batch)
        updates += 1
        if updates % workload.policy_freq == 0:
            actor_loss = actor_step(batch)
            weights.average(workload.tau)
        if step % 100 == 0:
            tqdm.write(f"{step}: q_loss {q_loss.item():.3f}, actor_loss {actor_loss.item():.3f}")

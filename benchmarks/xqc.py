"""TD3 with normalized, categorical critics and no target networks, as in XQC (Palenicek et al., 2025).

A rival of benchmarks.score_per_hour, to decide whether the package should have such an agent (arXiv 2509.25174). The
critics have an input BatchNorm, twice [Linear of 256 whose rows have norm 1, BatchNorm, ReLU], and a Linear to the
logits of 101 atoms in [-5, 5]. One forward pass has (s, a) and (s', a'), so that both share their statistics. Rewards
are divided by the spread of the running discounted returns. One update for four steps.
"""

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.baselines.process import tune_process
from benchmarks.score_run import Policy

ATOMS, BOUND, WIDTH = 101, 5.0, 256
BATCH, GAMMA, RANDOM_STEPS, STEPS_PER_UPDATE, POLICY_FREQ = 256, 0.99, 10_000, 4, 3
NOISE, TARGET_NOISE, CLIP = 0.1, 0.2, 0.5
LR, LAST_LR = 1e-3, 0.1  # the second is the share of the first at the end
CAPACITY = 1_000_000


def norm(size: int, affine: bool = True) -> nn.BatchNorm1d:
    """Return a BatchNorm."""
    return nn.BatchNorm1d(size, eps=1e-3, momentum=0.01, affine=affine)


class Critics(nn.Module):
    """Two critics, whose hidden units lie side by side.

    Args:
        inputs: Numbers in an observation and an action.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([norm(inputs, affine=False), norm(2 * WIDTH), norm(2 * WIDTH)])
        self.first = nn.Parameter(torch.randn(2 * WIDTH, inputs))
        self.second = nn.Parameter(torch.randn(2, WIDTH, WIDTH))
        self.last = nn.Parameter(torch.empty(2, ATOMS, WIDTH).uniform_(-1, 1) / WIDTH**0.5)
        self.bias = nn.Parameter(torch.zeros(2, 1, ATOMS))
        self.project()

    @torch.no_grad()
    def project(self) -> None:
        """Give the rows of the hidden weights the norm 1."""
        for weight in (self.first, self.second):
            weight.div_(weight.norm(dim=-1, keepdim=True))

    def joint(self, now: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (2, batch, atoms) of two batches with common statistics; gradients of the first only."""
        count = len(now)
        for stage in range(3):
            both = self.norms[stage](torch.cat((now, following)))
            both = both if stage == 0 else both.relu()
            now, following = both[:count], both[count:].detach()
            if stage < 2:
                now, following = self.linear(stage, now), self.linear(stage, following).detach()
        return self.head(now), self.head(following).detach()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (2, batch, atoms) with the running statistics."""
        hidden = self.norms[1](self.linear(0, self.norms[0](inputs))).relu()
        return self.head(self.norms[2](self.linear(1, hidden)).relu())

    def linear(self, stage: int, hidden: Tensor) -> Tensor:
        """Return the next layer (batch, 2 x width) of both critics."""
        if stage == 0:
            return hidden @ self.first.T
        return (sides(hidden) @ self.second.mT).transpose(0, 1).reshape(-1, 2 * WIDTH)

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits of both critics."""
        return torch.baddbmm(self.bias, sides(hidden), self.last.mT)


def sides(hidden: Tensor) -> Tensor:
    """Return the units (2, batch, width) of both critics."""
    return hidden.view(len(hidden), 2, WIDTH).transpose(0, 1)


class RewardScale:
    """The divisor of the rewards: the deviation of the running discounted returns, or a fifth of the largest one."""

    def __init__(self) -> None:
        self.count, self.now, self.mean, self.square, self.largest = 0, 0.0, 0.0, 0.0, 0.0

    def add(self, reward: float, has_ended: bool) -> None:
        """Add the reward of a step."""
        self.now = GAMMA * self.now + reward
        self.count += 1
        delta = self.now - self.mean
        self.mean += delta / self.count
        self.square += delta * (self.now - self.mean)
        self.largest = max(self.largest, abs(self.now))
        if has_ended:
            self.now = 0.0

    def value(self) -> float:
        """Return the divisor."""
        return max(math.sqrt(self.square / self.count), self.largest / BOUND, 1e-8)


class Agent:
    """The actor and the critics. Actions are in [-1, 1].

    Args:
        obs_dim: Numbers in an observation.
        action_dim: Numbers in an action.
    """

    def __init__(self, obs_dim: int, action_dim: int) -> None:
        self.actor = nn.Sequential(
            *(norm(obs_dim, affine=False), nn.Linear(obs_dim, WIDTH), norm(WIDTH), nn.ReLU()),
            *(nn.Linear(WIDTH, WIDTH), norm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, action_dim), nn.Tanh()),
        ).eval()
        self.critics = Critics(obs_dim + action_dim)
        self.adams = [
            torch.optim.Adam(network.parameters(), LR, betas=(0.5, 0.999), fused=True)
            for network in (self.actor, self.critics)
        ]
        self.atoms, self.updates = torch.linspace(-BOUND, BOUND, ATOMS), 0

    @torch.no_grad()
    def act(self, obs: Any) -> Any:
        """Return the action (action_dim,) for an observation (obs_dim,)."""
        return self.actor(torch.as_tensor(np.float32(obs))[None])[0].numpy()

    def decay(self, elapsed: float) -> None:
        """Set the learning rate, which decreases linearly, given the elapsed share of the run."""
        for adam in self.adams:
            adam.param_groups[0]["lr"] = LR * (1 - (1 - LAST_LR) * min(elapsed, 1.0))

    def update(self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, discount: Tensor) -> None:
        """Update the critics, and less often the actor. Rewards (batch, 1) are scaled."""
        self.updates += 1
        with torch.no_grad():
            noise = (torch.randn_like(action) * TARGET_NOISE).clamp_(-CLIP, CLIP)
            next_action = (self.actor(next_obs) + noise).clamp_(-1, 1)
        self.critics.train()
        logits, following = self.critics.joint(torch.cat((obs, action), 1), torch.cat((next_obs, next_action), 1))
        target = self.target(following.softmax(-1), reward, discount)
        self.step(1, -(target * logits.log_softmax(-1)).sum(-1).mean(1).sum())
        self.critics.project()
        self.critics.eval()
        if self.updates % POLICY_FREQ == 0:
            self.update_actor(obs)

    def update_actor(self, obs: Tensor) -> None:
        """Maximize the mean of both critics."""
        self.critics.requires_grad_(False)
        self.actor.train()
        values = self.critics(torch.cat((obs, self.actor(obs)), 1)).softmax(-1) @ self.atoms
        self.actor.eval()
        self.step(0, -values.mean())
        self.critics.requires_grad_(True)

    def step(self, index: int, loss: Tensor) -> None:
        """Take a step of the actor's optimizer (0) or of the critics' (1)."""
        self.adams[index].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.adams[index].step()

    @torch.no_grad()
    def target(self, probs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the projected distribution (batch, atoms) of the critic with the smaller mean."""
        chosen = probs[(probs @ self.atoms).argmin(0), torch.arange(len(reward))]
        place = ((reward + discount * self.atoms).clamp_(-BOUND, BOUND) + BOUND) * ((ATOMS - 1) / (2 * BOUND))
        low = place.floor()
        upper, low = place - low, low.long()
        target = torch.zeros_like(chosen).scatter_add_(1, low, chosen * (1 - upper))
        return target.scatter_add_(1, (low + 1).clamp_(max=ATOMS - 1), chosen * upper)


def train(env: Any, seed: int, elapsed: Callable[[], float], evaluate: Callable[[int, Policy], None]) -> None:
    """Train without end. `elapsed` returns the elapsed share of the run."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    sizes = [env.observation_space.shape[0], env.action_space.shape[0]]
    high, agent, scale = env.action_space.high, Agent(sizes[0], sizes[1]), RewardScale()
    widths = [sizes[0], sizes[1], sizes[0], 1, 1]
    rows = np.zeros((CAPACITY, sum(widths)), np.float32)
    obs = env.reset(seed=seed)[0]
    for step in range(1, 10**8):
        action = rng.uniform(-1, 1, sizes[1])
        if step > RANDOM_STEPS:
            action = np.clip(agent.act(obs) + NOISE * rng.standard_normal(sizes[1]), -1, 1)
        next_obs, reward, terminated, truncated, _ = env.step(action * high)
        rows[(step - 1) % CAPACITY] = (*obs, *action, *next_obs, reward, GAMMA * (1 - terminated))
        scale.add(float(reward), terminated or truncated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step > RANDOM_STEPS and step % STEPS_PER_UPDATE == 0:
            batch = torch.from_numpy(rows[rng.integers(min(step, CAPACITY), size=BATCH)])
            seen, taken, following, rewards, discounts = torch.split(batch, widths, 1)
            agent.update(seen, taken, following, rewards / scale.value(), discounts)
            agent.decay(elapsed())
        if step % 500 == 0:
            evaluate(step, lambda seen: agent.act(seen) * high)


def start(env_id: str, seed: int, scorer: Any) -> None:
    """Train until the scorer ends the process."""
    tune_process()
    evaluate: Any = lambda frames, policy: scorer.evaluate(frames, policy, lambda: gym.make(env_id))  # noqa: E731
    train(gym.make(env_id), seed, lambda: scorer.seconds() / scorer.budget, evaluate)

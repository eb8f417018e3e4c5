"""Draw what a policy does: its value estimates beside the observed returns, its actions, and the line of the car."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.atomic_files import atomic_write
from td3_lightning.envs.car_racing import CarRacing
from td3_lightning.envs.episode import Episode
from td3_lightning.training.data_module import ReplayData

BLUE, GREY = "#2f6db5", "#bbbbbb"
MAX_MISSING_WEIGHT = 0.05  # of the rewards after a truncation, in the discounted return of a drawn step


@dataclass
class Trajectory:
    """Hold an episode of T steps: observations (T, obs_dim), actions (T, action_dim), rewards and positions (T, 2)."""

    obs: list[NDArray[Any]] = field(default_factory=list)
    actions: list[NDArray[Any]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    positions: list[tuple[float, float]] = field(default_factory=list)  # of the car, before each step
    speeds: list[float] = field(default_factory=list)
    terminated: bool = False

    def discounted_returns(self, gamma: float) -> NDArray[np.float64]:
        """Return the discounted sums of rewards from each step on, (n,), without the last steps if truncated."""
        returns, total = np.zeros(len(self.rewards)), 0.0
        for step in reversed(range(len(self.rewards))):
            total = self.rewards[step] + gamma * total
            returns[step] = total
        missing = gamma ** np.arange(len(returns), 0, -1.0)
        return returns if self.terminated else returns[missing <= MAX_MISSING_WEIGHT]


class TrajectoryRecorder(gym.Wrapper):
    """Record the steps of the running episode in `trajectory`."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.trajectory = Trajectory()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and begin a new trajectory."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.trajectory, self._obs = Trajectory(), np.array(obs)
        return obs, info

    def step(self, action: Any) -> Any:
        """Step, and record the step."""
        path = self.trajectory
        path.obs.append(self._obs)
        path.actions.append(np.array(action))
        if isinstance(self.unwrapped, CarRacing):
            hull = self.unwrapped.car.hull
            path.positions.append((hull.position.x, hull.position.y))
            path.speeds.append(hull.linearVelocity.length)
        obs, reward, terminated, truncated, info = self.env.step(action)
        path.rewards.append(float(reward))
        path.terminated, self._obs = terminated, np.array(obs)
        return obs, reward, terminated, truncated, info


def write_policy_plots(module: TD3, data: ReplayData, episodes: int, folder: Path) -> Iterator[Path]:
    """Play episodes with the seeds of `test`, draw them, and yield the paths of the pictures.

    Args:
        module: Agent that acts.
        data: Data module that makes the environment.
        episodes: Number of episodes.
        folder: Folder of values.png, actions.png and, for CarRacing, track.png.
    """
    folder.mkdir(parents=True, exist_ok=True)  # fails before the episodes
    recorder = TrajectoryRecorder(data.make_env())
    try:
        seeds = range(data.test_seeds.start, data.test_seeds.start + episodes)
        trajectories = [_play(module, recorder, seed) for seed in seeds]
        figures = {"values.png": draw_values(module, data, trajectories)}
        figures["actions.png"] = draw_actions(trajectories, data)
        if isinstance(recorder.unwrapped, CarRacing):
            figures["track.png"] = draw_track(recorder.unwrapped, trajectories[-1])
    finally:
        recorder.close()
    for name, figure in figures.items():
        atomic_write(folder / name, partial(figure.savefig, format="png"))
        yield folder / name


def _play(module: TD3, recorder: TrajectoryRecorder, seed: int) -> Trajectory:
    Episode(recorder, seed).play(module.act)
    return recorder.trajectory


def draw_values(module: TD3, data: ReplayData, trajectories: Sequence[Trajectory]) -> Figure:
    """Draw the first critic's estimate of each step against the discounted return that followed it.

    Points above the diagonal are overestimates. Both axes are in the environment's units of reward.
    """
    gamma = data.replay.gamma_schedule(module.env_steps)
    observed = [each.discounted_returns(gamma) for each in trajectories]
    estimated = [_estimates(module, each)[: len(kept)] for each, kept in zip(trajectories, observed, strict=True)]
    x, y = np.concatenate(observed), np.concatenate(estimated) / (data.replay.reward_scale * module.reward_factor)
    figure, axes = _figure("observed discounted return", "estimate of the first critic")
    if len(x):
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        axes.plot(ends, ends, color=GREY, label="no bias")
        axes.plot(x, y, ".", color=BLUE, ms=7, alpha=0.5, mew=0, label="steps")
        axes.set_title(f"mean estimate {y.mean():,.2f}, mean return {x.mean():,.2f}")
        axes.legend()
    else:
        axes.set_title("the episodes are too short for the discount")
    return figure


def _estimates(module: TD3, trajectory: Trajectory) -> NDArray[np.float64]:
    """Return the first critic's values of the trajectory's steps, (T,)."""
    device, dtype = module.actor.scale.device, module.actor.scale.dtype
    obs, actions = (
        torch.as_tensor(np.array(rows), device=device, dtype=dtype) for rows in (trajectory.obs, trajectory.actions)
    )
    with torch.no_grad():
        values = module.estimate(obs, actions)
    return values.double().cpu().numpy().reshape(-1)


def draw_actions(trajectories: Sequence[Trajectory], data: ReplayData) -> Figure:
    """Draw a histogram of each number of the actions, from its lower to its upper bound."""
    actions = np.concatenate([np.array(each.actions) for each in trajectories])
    figure = Figure(figsize=(9.0, 1.0 + 2.0 * actions.shape[1]), dpi=120, layout="constrained")
    for index, axes in enumerate(np.ravel(figure.subplots(actions.shape[1], squeeze=False))):
        bounds = data.action_low[index], data.action_high[index]
        axes.hist(actions[:, index], bins=50, range=bounds, color=BLUE)
        axes.set(xlabel=f"action {index}", ylabel="steps", xlim=bounds)
        axes.grid(alpha=0.3)
    return figure


def draw_track(car: CarRacing, trajectory: Trajectory) -> Figure:
    """Draw the road and the driven line, colored by the speed in units per second."""
    figure, axes = _figure("x", "y")
    axes.plot(*car.edges[:2], color=GREY, lw=1)  # NaN separates the two edges
    points = np.array(trajectory.positions)
    segments = np.stack([points[:-1], points[1:]], axis=1)
    line = axes.add_collection(LineCollection(list(segments), array=np.array(trajectory.speeds), cmap="turbo", lw=2))
    figure.colorbar(line, label="speed (units/s)")
    axes.set_aspect("equal")
    axes.autoscale()
    return figure


def _figure(xlabel: str, ylabel: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8.0, 6.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    return figure, axes

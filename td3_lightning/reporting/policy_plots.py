"""Draw what a policy does: its value estimates beside the observed returns, its actions, and the line of the car."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.car_racing import CarRacing
from td3_lightning.replay.episodes import RecordedEpisode
from td3_lightning.reporting.pictures import write_picture
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.recorded_policy import TransitionRecorder

BLUE, GREY = "#2f6db5", "#bbbbbb"
MAX_ESTIMATED_WEIGHT = 0.25  # of the rewards after a truncation, in the discounted return of a drawn step


class LineRecorder(TransitionRecorder):
    """Record also the x and y of the car and its speed before each step, in `line`; nothing for other environments."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset, and begin a new recording."""
        self.line: list[tuple[float, float, float]] = []
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Step, and record the step."""
        if isinstance(self.unwrapped, CarRacing):
            hull = self.unwrapped.car.hull
            self.line.append((hull.position.x, hull.position.y, hull.linearVelocity.length))
        return super().step(action)


def discounted_returns(episode: RecordedEpisode, gamma: float, last: float) -> NDArray[np.float64]:
    """Return the discounted sums of rewards from each step on, (n,).

    The rewards after a truncation are not known. The return of the last step is replaced by its estimate `last`, and
    the steps in which the estimate has a large weight are left out.
    """
    returns = np.array(episode.reward, np.float64)
    if not episode.terminated:
        returns[-1] = last
    for step in reversed(range(len(returns) - 1)):
        returns[step] += gamma * returns[step + 1]
    weights = gamma ** np.arange(len(returns) - 1, -1, -1.0)
    return returns if episode.terminated else returns[weights <= MAX_ESTIMATED_WEIGHT]


def write_policy_plots(module: TD3, data: ReplayData, episodes: int, folder: Path) -> Iterator[Path]:
    """Play episodes with the seeds of `test`, and yield the paths of values.png, actions.png and a car's track.png.

    There is no values.png if the policy is a copy, because the critics belong to another policy.
    """
    folder.mkdir(parents=True, exist_ok=True)  # fails before the episodes
    recorder = LineRecorder(data.make_env())
    try:
        seeds = range(data.test_seeds.start, data.test_seeds.start + episodes)
        recorded = [recorder.play(module.act, seed) for seed in seeds]
    finally:
        recorder.close()
    pictures: dict[str, Callable[[], Figure]] = {}
    if not module.is_copied:
        pictures["values.png"] = lambda: draw_values(module, data, recorded)
    pictures["actions.png"] = lambda: draw_actions(recorded, data)
    if recorder.line:
        pictures["track.png"] = lambda: draw_track(recorder.unwrapped, recorder.line)
    for name, draw in pictures.items():
        write_picture(folder / name, draw)
        yield folder / name


def draw_values(module: TD3, data: ReplayData, episodes: Sequence[RecordedEpisode]) -> Figure:
    """Draw the first critic's estimate of each step against the discounted return that followed it.

    Points above the diagonal are overestimates. Both axes are in the environment's units of reward.
    """
    gamma = data.replay.gamma_schedule(module.env_steps)
    estimated = []
    for each in episodes:
        obs, actions = (torch.from_numpy(rows).to(module.actor.scale) for rows in (each.obs[:-1], each.action))
        with torch.no_grad():
            values = module.q_value(obs, actions).double().cpu().numpy().reshape(-1)
        estimated.append(values / data.replay.reward_scale)
    observed = [discounted_returns(each, gamma, one[-1]) for each, one in zip(episodes, estimated, strict=True)]
    x = np.concatenate(observed)
    y = np.concatenate([one[: len(kept)] for one, kept in zip(estimated, observed, strict=True)])
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


def draw_actions(episodes: Sequence[RecordedEpisode], data: ReplayData) -> Figure:
    """Draw a histogram of each number of the actions, from its lower to its upper bound."""
    actions = np.concatenate([each.action for each in episodes])
    figure = Figure(figsize=(9.0, 1.0 + 2.0 * actions.shape[1]), dpi=120, layout="constrained")
    for index, axes in enumerate(np.ravel(figure.subplots(actions.shape[1], squeeze=False))):
        bounds = data.action_low[index], data.action_high[index]
        axes.hist(actions[:, index], bins=50, range=bounds, color=BLUE)
        axes.set(xlabel=f"action {index}", ylabel="steps", xlim=bounds)
        axes.grid(alpha=0.3)
    return figure


def draw_track(car: Any, line: Sequence[tuple[float, float, float]]) -> Figure:
    """Draw the road and a line (x, y, speed before each step), colored by the speed in units per second."""
    figure, axes = _figure("x", "y")
    axes.plot(*car.edges[:2], color=GREY, lw=1)  # NaN separates the two edges
    points, speed = np.array(line)[:, :2], np.array(line)[:, 2]
    segments = np.stack([points[:-1], points[1:]], axis=1)
    drawn = axes.add_collection(LineCollection(list(segments), array=speed, cmap="turbo", lw=2))
    figure.colorbar(drawn, label="speed (units/s)")
    axes.set_aspect("equal")
    axes.autoscale()
    return figure


def _figure(xlabel: str, ylabel: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8.0, 6.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    return figure, axes

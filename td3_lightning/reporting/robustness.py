"""Measure and draw how the returns of a policy depend on noise in its observations and actions."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from td3_lightning.envs.episode import Episode, Policy
from td3_lightning.envs.make import Wrapper, wrapper_class
from td3_lightning.envs.noise import MAX_STD, ActionNoise, Noise, ObservationNoise
from td3_lightning.envs.wrappers import with_flat_observations
from td3_lightning.errors import UsageError, require_float
from td3_lightning.reporting.metrics_csv import write_rows
from td3_lightning.reporting.pictures import write_picture
from td3_lightning.reporting.seed_curves import half_width
from td3_lightning.training.data_module import ReplayData

BLUE, PALE_BLUE = "#2f6db5", "#a9c4e4"


@dataclass(frozen=True)
class Level:
    """Describe a level of noise: the `std` of `ObservationNoise` and of `ActionNoise`."""

    observation_noise: float
    action_noise: float

    def __str__(self) -> str:
        return f"{self.observation_noise:g} / {self.action_noise:g}"


@dataclass
class Measurement:
    """Hold the reports of the episodes with one level of noise."""

    level: Level
    episodes: list[Mapping[str, float]] = field(default_factory=list)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Return the returns, (episodes,)."""
        return np.array([episode["return"] for episode in self.episodes])

    @property
    def interval(self) -> float:
        """Return half the width of the 95% interval of the mean return; NaN for one episode."""
        return float(half_width(self.returns))


def noise_levels(observation_noise: Sequence[float], action_noise: Sequence[float]) -> list[Level]:
    """Pair the levels of both kinds of noise.

    Raises:
        UsageError: A level is out of range, or the lists differ in length.
    """
    levels = {"observation_noise": observation_noise, "action_noise": action_noise}
    for name, values in levels.items():
        for value in values:
            require_float(name, value, least=0, most=MAX_STD, fix="Use 0 for no noise.")
    counts = [len(values) for values in levels.values()]
    if counts[0] != counts[1] or not counts[0]:
        raise UsageError(
            f"observation_noise and action_noise must have the same number of levels, got {counts[0]} and {counts[1]}. "
            "Use one number of each per level."
        )
    return [Level(*pair) for pair in zip(*levels.values(), strict=True)]


def measure(policy: Policy, data: ReplayData, levels: Sequence[Level], seeds: Sequence[int]) -> Iterator[Measurement]:
    """Play the same episodes with each level of noise, and yield the reports of a level when it is complete.

    A level replaces the `ObservationNoise` and `ActionNoise` of `data` in their places. Noise that it does not have is
    added outside of all wrappers.
    """
    noisy = copy.copy(data)
    for level in levels:
        missing: dict[Any, Wrapper] = {
            ObservationNoise: partial(ObservationNoise, std=level.observation_noise),
            ActionNoise: partial(ActionNoise, std=level.action_noise),
        }
        noisy.wrappers = []
        for wrapper in data.wrappers:
            kind = wrapper_class(wrapper)
            if not (isinstance(kind, type) and issubclass(kind, Noise)):
                noisy.wrappers.append(wrapper)
            elif kind in missing:
                noisy.wrappers.append(missing.pop(kind))
        noisy.wrappers += [with_flat_observations, *missing.values()]  # noise requires numbers, not a dict of them
        env = noisy.make_env()
        try:
            yield Measurement(level, [Episode(env, seed).play(policy) for seed in seeds])
        finally:
            env.close()


def write_report(measurements: Sequence[Measurement], folder: Path, title: str) -> list[Path]:
    """Write `episodes.csv` and `robustness.png` to a folder, and return their paths."""
    table, picture = folder / "episodes.csv", folder / "robustness.png"
    rows = [{**vars(one.level), **episode} for one in measurements for episode in one.episodes]
    write_rows(table, [{name: float(value) for name, value in row.items()} for row in rows])  # also booleans
    write_picture(picture, lambda: draw_robustness(measurements, title))
    return [table, picture]


def robustness_table(measurements: Sequence[Measurement]) -> Table:
    """Build a table with one column per level: the return, its 95% interval and minimum, and the other numbers."""

    def described(values: Sequence[float]) -> str:
        is_count = np.isin(values, (0.0, 1.0)).all()
        return f"{sum(values):.0f} of {len(values)}" if is_count else f"{np.mean(values):,.2f}"

    table = Table("noise of observations / actions", *(str(one.level) for one in measurements))
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("return, mean", *(f"{one.returns.mean():,.2f}" for one in measurements))
    table.add_row("95% interval", *(f"± {one.interval:,.2f}" if len(one.episodes) > 1 else "-" for one in measurements))
    table.add_row("return, min", *(f"{one.returns.min():,.2f}" for one in measurements))
    for name in measurements[0].episodes[0]:
        if name != "return" and all(name in episode for one in measurements for episode in one.episodes):
            table.add_row(escape(name), *(described([each[name] for each in one.episodes]) for one in measurements))
    return table


def draw_robustness(measurements: Sequence[Measurement], title: str) -> Figure:
    """Draw the returns of all episodes, their means and 95% intervals against the level of noise."""
    figure = Figure(figsize=(9.0, 5.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(measurements))
    for place, one in zip(places, measurements, strict=True):
        spread = np.linspace(-0.15, 0.15, len(one.returns))
        axes.plot(place + spread, one.returns, ".", color=PALE_BLUE, ms=7, mew=0)
    means, intervals = [one.returns.mean() for one in measurements], [one.interval for one in measurements]
    axes.errorbar(places, means, intervals, fmt="o-", color=BLUE, capsize=4, label="mean and 95% interval")
    axes.set_xticks(places, [str(one.level) for one in measurements])
    noise = "std of relative observation noise / of action noise in units of the range"
    axes.set(title=title, xlabel=noise, ylabel="return")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure

"""Validated settings of the data module."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from td3_lightning.errors import refuse, require_bool, require_int
from td3_lightning.schedules import Schedule, as_schedule

EVAL_SEED, TEST_SEED = 10_000, 50_000  # of the first episodes; evaluations use the seeds between them
MAX_EPISODES = 1_000_000  # in one test
MAX_STEPS = 10**9  # in one epoch, and before the first update
MAX_UPDATES = 10_000  # per environment step


@dataclass
class DataSettings:
    """Check and convert the settings of a `ReplayData` that neither an environment nor a replay checks.

    Raises:
        UsageError: A setting is out of range.
    """

    num_envs: int
    steps_per_epoch: int
    updates_per_step: float | Schedule
    empty_replay: bool
    updates_schedule: Schedule = field(init=False)  # `updates_per_step`

    def __post_init__(self) -> None:
        self.num_envs = require_int("num_envs", self.num_envs, least=1)
        self.steps_per_epoch = require_int("steps_per_epoch", self.steps_per_epoch, least=1, most=MAX_STEPS)
        least, most = 1 / self.steps_per_epoch, MAX_UPDATES  # a smaller rate would seem to hang
        fix = f"Use at least 1 / data.steps_per_epoch and at most {most:,}."
        self.updates_schedule = as_schedule("updates_per_step", self.updates_per_step, least, most, fix=fix)
        self.empty_replay = require_bool("empty_replay", self.empty_replay)

    @property
    def updates_per_epoch(self) -> int:
        """Return the number of updates in an epoch, which the first value of `updates_per_step` determines."""
        return round(self.steps_per_epoch * self.updates_schedule(0))


def require_kwargs(name: str, kwargs: Any) -> dict[str, Any]:
    """Return keyword arguments; None stands for no arguments."""
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise refuse(name, "a mapping with names as keys", kwargs, "Use {'max_episode_steps': 500}, for example.")
    return dict(kwargs)


def require_wrappers(wrappers: Any) -> list[Any]:
    """Return functions that wrap an environment; None stands for no wrappers."""
    if wrappers is None:
        return []
    if not isinstance(wrappers, list | tuple) or not all(map(callable, wrappers)):
        fix = "Use [lambda env: ActionRepeat(env, 2)], for example."
        raise refuse("wrappers", "a list of functions of an environment", wrappers, fix)
    return list(wrappers)


def eval_seeds(episodes: int) -> range:
    """Return the seeds of the episodes of an evaluation; raise `UsageError` if there are too few or too many."""
    return range(EVAL_SEED, EVAL_SEED + require_int("eval_episodes", episodes, 1, TEST_SEED - EVAL_SEED))


def test_seeds(seed: int, episodes: int) -> range:
    """Return the seeds of the episodes of `test`.

    Raises:
        UsageError: An evaluation could use the seed, or the number of episodes is out of range.
    """
    fix = f"Use {TEST_SEED}, because evaluations use smaller seeds."
    first = require_int("test_seed", seed, least=TEST_SEED, fix=fix)
    return range(first, first + require_int("test_episodes", episodes, least=1, most=MAX_EPISODES))

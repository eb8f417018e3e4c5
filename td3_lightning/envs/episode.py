"""Greedy evaluation episodes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from numpy.typing import NDArray

from td3_lightning.envs.checked import CheckedEnv
from td3_lightning.envs.reports import ReportNames, scalar_info
from td3_lightning.errors import EnvError, UsageError

MOST_STEPS = 100_000  # of an episode that is waited for, in an environment without a time limit


Policy = Callable[[NDArray[Any]], NDArray[Any]]


class Episode:
    """One evaluation episode, ready to be played.

    Args:
        env: The environment.
        seed: The seed of its reset.
        names: The names that are reported, shared by the episodes of a run.
    """

    def __init__(self, env: gym.Env, seed: int, names: "ReportNames | None" = None) -> None:
        self.env, self.seed, self.names = env, seed, names or ReportNames()

    def play(self, policy: Policy) -> dict[str, float]:
        """Plays to the end and reports `return`, `length` in steps, and the numbers in the last `info`."""
        env = CheckedEnv(self.env)
        obs, info = env.reset(seed=self.seed)
        total, length, ended = 0.0, 0, False
        while not ended:
            if length == MOST_STEPS:
                _check_has_time_limit(env)
            obs, reward, terminated, truncated, info = env.step(policy(obs))
            total, length, ended = total + float(reward), length + 1, terminated or truncated
        return self.names.kept(scalar_info(info) | {"return": total, "length": float(length)})


def _check_has_time_limit(env: CheckedEnv) -> None:
    if env.spec is None or env.spec.max_episode_steps is None:
        raise EnvError(
            f"{env.name} has not ended its episode of seed {env.first_seed} after {env.steps:,} steps, and has no time "
            "limit. Use --data.env_kwargs.max_episode_steps 1000, or gymnasium.wrappers.TimeLimit in data.wrappers."
        )


def check_keeps_no_statistics(env: gym.Env) -> None:
    """Raises `UsageError` for a wrapper that normalises by what its own environment has shown so far."""
    while isinstance(env, gym.Wrapper):
        if {"obs_rms", "return_rms"} & vars(env).keys() and getattr(env, "update_running_mean", True):
            raise UsageError(
                f"{type(env).__name__} goes by statistics of its own environment, which evaluations do not share and "
                "no checkpoint holds; scale by bounds that stay, with gymnasium.wrappers.RescaleObservation or "
                "--data.reward_scale."
            )
        env = env.env


@dataclass(frozen=True)
class Episodes:
    """The episodes of an evaluation, one for each seed: a loader whose batches are episodes."""

    env: gym.Env
    seeds: Sequence[int]
    names: "ReportNames | None" = None

    def __len__(self) -> int:
        return len(self.seeds)

    def __iter__(self) -> Iterator[Episode]:
        return (Episode(self.env, seed, self.names) for seed in self.seeds)

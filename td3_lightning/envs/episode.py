"""Evaluation episodes without exploration noise."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from numpy.typing import NDArray

from td3_lightning.envs.checked import CheckedEnv
from td3_lightning.envs.reports import ReportNames, scalar_info
from td3_lightning.errors import EnvError, UsageError

MAX_EPISODE_STEPS = 100_000  # in an environment without a time limit
STATISTICS = {"obs_rms": "NormalizeObservation", "return_rms": "NormalizeReward"}  # attributes of Gymnasium's wrappers
Policy = Callable[[NDArray[Any]], NDArray[Any]]


class Episode:
    """Play one evaluation episode without exploration noise.

    Args:
        env: The environment.
        seed: Seed of the reset.
        names: Reported names, shared by the episodes of a run.
    """

    def __init__(self, env: gym.Env, seed: int, names: ReportNames | None = None) -> None:
        self.env, self.seed, self.names = env, seed, names or ReportNames()

    def play(self, policy: Policy) -> dict[str, float]:
        """Play the episode to its end.

        Args:
            policy: Maps an observation to an action.

        Returns:
            `return`, `length` in steps, and the numbers in the last `info`.
        """
        env = CheckedEnv(self.env)
        obs, info = env.reset(seed=self.seed)
        total, length, ended = 0.0, 0, False
        while not ended:
            if length == MAX_EPISODE_STEPS:
                _check_has_time_limit(env)
            obs, reward, terminated, truncated, info = env.step(policy(obs))
            total, length, ended = total + float(reward), length + 1, terminated or truncated
        return self.names.limit(scalar_info(info) | {"return": total, "length": float(length)})


def _check_has_time_limit(env: CheckedEnv) -> None:
    if env.spec is None or env.spec.max_episode_steps is None:
        raise EnvError(
            f"{env.name} has not ended its episode of seed {env.first_seed} after {env.steps:,} steps, and has no time "
            "limit. Use --data.env_kwargs.max_episode_steps 1000, or gymnasium.wrappers.TimeLimit in data.wrappers."
        )


def check_keeps_no_statistics(env: gym.Env | gym.vector.VectorEnv, setting: str = "data.wrappers") -> None:
    """Raise `UsageError` for a wrapper that normalizes with running statistics.

    Args:
        env: An environment or a vector environment with its wrappers.
        setting: Name of the setting that adds the wrappers.
    """
    for name in _running_statistics(env):
        raise UsageError(
            f"{setting} must not update running statistics, got {name}: evaluations do not share "
            "its statistics, and checkpoints do not contain them. Use --model.normalize_observations true, or "
            "--model.normalize_rewards true."
        )


def _running_statistics(env: Any) -> Iterator[str]:
    """Yield the names of wrappers of an environment that update running statistics."""
    if STATISTICS.keys() & vars(env).keys() and getattr(env, "update_running_mean", True):
        yield type(env).__name__
    if isinstance(env, gym.vector.AsyncVectorEnv):
        yield from _running_statistics_of_processes(env)
    inner = [env.env] if isinstance(env, gym.Wrapper | gym.vector.VectorWrapper) else []
    for each in env.envs if isinstance(env, gym.vector.SyncVectorEnv) else inner:
        yield from _running_statistics(each)


def _running_statistics_of_processes(envs: gym.vector.AsyncVectorEnv) -> Iterator[str]:
    """Yield the names of Gymnasium's wrappers that update running statistics in the processes of a vector env."""
    for attribute, name in STATISTICS.items():
        if any(envs.call("has_wrapper_attr", attribute)):
            has_switch = all(envs.call("has_wrapper_attr", "update_running_mean"))
            if not has_switch or any(envs.get_attr("update_running_mean")):
                yield name


@dataclass(frozen=True)
class Episodes:
    """Load one evaluation episode per seed. Each batch of this loader is an episode."""

    env: gym.Env
    seeds: Sequence[int]
    names: ReportNames | None = None

    def __len__(self) -> int:
        return len(self.seeds)

    def __iter__(self) -> Iterator[Episode]:
        return (Episode(self.env, seed, self.names) for seed in self.seeds)

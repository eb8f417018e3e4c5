"""Evaluation episodes without exploration noise."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers import vector as vector_wrappers
from numpy.typing import NDArray

from td3_lightning.envs.checked import RestorableEnv
from td3_lightning.envs.reports import info_values
from td3_lightning.errors import EnvError, UsageError

MAX_EPISODE_STEPS = 100_000  # in an environment without a time limit
NORMALIZERS = (
    *(NormalizeObservation, NormalizeReward),
    *(vector_wrappers.NormalizeObservation, vector_wrappers.NormalizeReward),
)
Policy = Callable[[NDArray[Any]], NDArray[Any]]


class Episode:
    """Play the evaluation episode of a seed without exploration noise."""

    def __init__(self, env: gym.Env, seed: int) -> None:
        self.env, self.seed = env if isinstance(env, RestorableEnv) else RestorableEnv(env), seed

    def play(self, policy: Policy) -> dict[str, float]:
        """Play the episode to its end with a policy, which maps an observation to an action.

        Returns:
            `return`, `length` in steps, and the numbers and booleans in the last `info`.
        """
        env = self.env
        obs, _ = env.reset(seed=self.seed)
        ended = False
        while not ended:
            if env.steps == MAX_EPISODE_STEPS:
                _check_has_time_limit(env)
            obs, _, terminated, truncated, report = env.step(policy(obs))
            ended = terminated or truncated
        return info_values(env.info) | {name: report[name] for name in ("return", "length")}


def _check_has_time_limit(env: RestorableEnv) -> None:
    if env.spec is None or env.spec.max_episode_steps is None:
        raise EnvError(
            f"{env.name} has not ended its episode of seed {env.seed} after {env.steps:,} steps, and has no time "
            "limit. Use --data.env_kwargs.max_episode_steps 1000, or gymnasium.wrappers.TimeLimit in data.wrappers."
        )


def check_keeps_no_statistics(env: gym.Env | VectorEnv, setting: str = "data.wrappers") -> None:
    """Raise `UsageError` for a wrapper, added by `setting`, that normalizes with running statistics."""
    while isinstance(env, gym.Wrapper | VectorWrapper):
        if isinstance(env, NORMALIZERS) and env.update_running_mean:
            raise UsageError(
                f"{setting} must not update running statistics, got {type(env).__name__}: evaluations do not share "
                "its statistics, and checkpoints do not contain them. Use --model.normalize_observations true, or "
                "data.reward_scale."
            )
        env = env.env


@dataclass(frozen=True)
class Episodes:
    """Load one evaluation episode per seed. Each batch of this loader is an episode."""

    env: gym.Env
    seeds: Sequence[int]

    def __len__(self) -> int:
        return len(self.seeds)

    def __iter__(self) -> Iterator[Episode]:
        return (Episode(self.env, seed) for seed in self.seeds)

"""Record episodes of a policy as transitions, for a dataset."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from td3_lightning.algorithm.agent import Agent
from td3_lightning.algorithm.exploration import MAX_NOISE, with_noise
from td3_lightning.envs.episode import Episode, Policy
from td3_lightning.envs.spaces import check_same_spaces
from td3_lightning.envs.wrappers import structured_space
from td3_lightning.errors import require_float, require_int
from td3_lightning.replay.dataset_writer import is_storable
from td3_lightning.replay.episodes import RecordedEpisode
from td3_lightning.seeding import derive_seed
from td3_lightning.training.data_module import MAX_EPISODES, ReplayData


class TransitionRecorder(gym.Wrapper):
    """Record the observations, actions, rewards and the end of the running episode."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._obs: list[Any] = []
        self._steps: list[tuple[Any, float, bool, bool]] = []  # action, reward, terminated, truncated

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and begin a new recording."""
        obs, info = self.env.reset(**kwargs)
        self._obs, self._steps = [np.array(obs)], []
        return obs, info

    def step(self, action: Any) -> Any:
        """Step the environment and record the transition."""
        own = np.array(action)  # the environment may overwrite its argument, and its observations later
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._obs.append(np.array(obs))
        self._steps.append((own, float(reward), bool(terminated), bool(truncated)))
        return obs, reward, terminated, truncated, info

    def play(self, policy: Policy, seed: int) -> RecordedEpisode:
        """Play an episode to its end, and return its recording."""
        Episode(self, seed).play(policy)
        action, reward, terminated, truncated = zip(*self._steps, strict=True)
        return RecordedEpisode(
            np.stack(self._obs), np.stack(action), np.array(reward), terminated[-1], truncated[-1], seed
        )


def dataset_space(env: gym.Env) -> gym.Space[Any]:
    """Return the space of the observations in a dataset: the original structure if a dataset can hold it exactly."""
    structure = structured_space(env)
    return structure if structure is not None and is_storable(structure) else env.observation_space


def record_episodes(module: Agent, data: ReplayData, episodes: int, noise: float) -> Iterator[RecordedEpisode]:
    """Play episodes in the training environment and yield their transitions.

    The seeds of the episodes and of the noise follow from `seed_everything`. The standard deviation of the noise is
    relative to half the action range.

    Raises:
        UsageError: A number is out of its range, or the training environment has other spaces than the evaluation one.
    """
    count = require_int("episodes", episodes, 1, MAX_EPISODES)
    noise = require_float("noise", noise, least=0, most=MAX_NOISE, fix="Use 0 for no noise.")
    rng = np.random.default_rng(derive_seed("noise of a dataset"))

    def policy(obs: Any) -> Any:
        action = module.act(obs)
        normal = rng.standard_normal(action.shape, dtype=np.float32)
        return with_noise(action, normal, noise, module.action_box)

    recorder = TransitionRecorder(data.make_env(**data.train_kwargs))
    try:
        check_same_spaces(recorder.observation_space, recorder.action_space, data.eval_env, data.env_id)
        for number in range(count):
            yield recorder.play(policy, derive_seed("episode of a dataset", number))
    finally:
        recorder.close()

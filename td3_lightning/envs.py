"""Environments: making them, ending them, playing an episode, and putting one back in mid-episode."""

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray

from td3_lightning.checks import require_float, require_int
from td3_lightning.errors import EnvError, UsageError
from td3_lightning.guarded import Guarded
from td3_lightning.lifetime import close_env
from td3_lightning.plain import as_arrays, as_plain
from td3_lightning.seeds import derive_seed

log = logging.getLogger(__name__)

LOGGED = {  # names that training and evaluations have for their own numbers
    *("return", "length", "return_mean", "return_std", "return_min", "return_max", "length_mean"),
    *("episode_return", "running_mean", "critic_loss", "actor_loss", "q_mean", "actor_lr", "critic_lr", "noise"),
    "steps_per_second",
}
MOST_STEPS = 100_000  # of an episode that is waited for, in an environment without a time limit
MOST_NAMES = 100  # numbers of infos that a run logs

Policy = Callable[[NDArray[Any]], NDArray[Any]]


class ActionRepeat(gym.Wrapper):
    """Holds each action for several frames and sums their rewards.

    Args:
        env: The environment to wrap.
        repeat: Frames for one action, at least 1.
    """

    def __init__(self, env: gym.Env, repeat: int) -> None:
        super().__init__(env)
        self.repeat = require_int("repeat of ActionRepeat", repeat, least=1, fix="Use 1 for no change.")

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """The last frame's observation and info, the sum of the rewards, and any frame's end."""
        total = 0.0
        for _ in range(self.repeat):
            obs, reward, terminated, truncated, info = self.env.step(np.array(action))
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class OneBound(gym.Wrapper):
    """Takes every action in [-bound, bound] and clips it to the box, as the original TD3's one `max_action` does.

    So that weight files of programs that clip, such as the car notebook, act here as they do there.

    Args:
        env: The environment to wrap.
        bound: Largest action in either direction, above 0.
    """

    def __init__(self, env: gym.Env, bound: float = 1.0) -> None:
        super().__init__(env)
        bound = require_float("bound of OneBound", bound, above=0, fix="Use 1, for example.")
        self.box = cast(Box, env.action_space)
        self.action_space = Box(-bound, bound, self.box.shape, np.float32)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps with the clipped action."""
        return self.env.step(np.clip(action, self.box.low, self.box.high))


class FlattenAction(gym.Wrapper):
    """Accept actions with one axis for an environment whose actions have several, or none.

    Args:
        env: The environment to wrap, whose actions are a `Box`.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.box = env.action_space
        if not isinstance(self.box, Box):
            raise UsageError(f"FlattenAction requires actions in a Box, got {self.box}. Use another environment.")
        self.action_space = Box(self.box.low.ravel(), self.box.high.ravel(), dtype=self.box.dtype.type)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step with the action in its original shape."""
        return self.env.step(np.reshape(action, self.box.shape))


class FreshWorld(gym.Wrapper):
    """Gives BipedalWalker a new Box2D world at every reset.

    Something stays behind in a used one, so that an episode would depend on those before it.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets in an empty world."""
        walker: Any = self.unwrapped
        walker._destroy()
        walker.world = type(walker.world)()
        return self.env.reset(seed=seed, options=options)


class Settled(gym.Wrapper):
    """Gives a robot of PyBullet a reset before its first episode that nobody sees.

    Where its links are is out of date after loading, so that the first reward of its first episode would be another
    than in a later one from the same seed. The reset has one seed in all processes, for its state is what all
    later resets begin from.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._settled = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets, the first time twice."""
        if not self._settled:
            before = self.np_random.bit_generator.state
            self.env.reset(seed=0)
            self.np_random.bit_generator.state = before
            self._settled = True
        return self.env.reset(seed=seed, options=options)

    def close(self) -> None:
        """Closes; what is loaded anew after that has to settle again."""
        self._settled = False
        self.env.close()


class Resumable(Guarded):
    """Remembers how the running episode came about, so that it can be brought back in another process.

    Simulators cannot be copied, but they are deterministic: the generator's state before the reset and
    the actions since are the state.

    Args:
        env: The environment.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._start: dict[str, Any] = {}
        self._actions: list[NDArray[Any]] = []
        self._return = 0.0
        self.obs: NDArray[Any] = np.empty(0)  # what came last, kept from environments that write into theirs
        self._info: dict[str, Any] = {}  # of the last step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets, and notes the seed or the generator that the episode comes from."""
        self._start = {"seed": seed} if seed is not None else self._generator_state()
        self._actions, self._return = [], 0.0
        obs, info = super().reset(seed=seed, options=options)
        self.obs = np.array(obs)
        return self.obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps, and notes the action and what came."""
        self._actions.append(np.array(action))
        obs, reward, terminated, truncated, info = super().step(np.array(action))
        self.obs, self._return = np.array(obs), self._return + float(reward)
        self._info = info
        return self.obs, reward, terminated, truncated, info

    @property
    def report(self) -> dict[str, float]:
        """Return and length so far, and the numbers of the last step's `info`."""
        return numbers(self._info) | {"return": self._return, "length": float(len(self._actions))}

    def _generator_state(self) -> dict[str, Any]:
        """Where its generator stands; nothing for one of another kind, such as numpy's old `RandomState`."""
        bits = getattr(self.np_random, "bit_generator", None)
        return {} if bits is None else {"generator": as_plain(bits.state, "the generator")}

    def state_dict(self) -> dict[str, Any]:
        """The episode so far, as tensors and plain numbers."""
        actions = torch.tensor(np.array(self._actions))
        origin = {"first_seed": self.first_seed, "episodes": self.episodes}  # for the sentence of a fault
        return {**self._start, **origin, "actions": actions, "obs": torch.tensor(self.obs), "return": self._return}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Plays the episode again; False, after a fresh reset, if it does not come out the same to the bit."""
        if "generator" in state:
            self.np_random.bit_generator.state = as_arrays(state["generator"])
        self.reset(seed=state.get("seed"))
        self.first_seed, self.episodes = state.get("first_seed"), state.get("episodes", 1)
        ended = any(any(self.step(action)[2:4]) for action in state["actions"].numpy())
        same = not ended and np.array_equal(self.obs, state["obs"].numpy(), equal_nan=True)
        same = same and self._return == state.get("return", self._return)  # older checkpoints lack it
        if not same:
            self.reset()
        return same


@dataclass(frozen=True)
class Step:
    """What one step of all training environments brought."""

    last_obs: NDArray[np.float32]  # (num_envs, obs_dim), what the step led to, at an episode's end too
    reward: list[float]  # one for each environment, as are the next two
    terminated: list[bool]
    truncated: list[bool]
    reports: list[dict[str, float]]  # one for each episode that ended


class TrainEnvs:
    """Environments that step together and begin again by themselves, in the step that ends an episode.

    Gymnasium's `SyncVectorEnv` does the same in twice the time.

    Args:
        make: Makes one environment.
        num_envs: How many.
    """

    def __init__(self, make: Callable[[], gym.Env], num_envs: int) -> None:
        self.envs: list[Resumable] = []
        try:
            self._make(make, num_envs)
        except BaseException:  # whatever a constructor may raise
            self.close()
            raise
        self._names = ReportNames()
        self.obs = np.empty((0, 0), np.float32)  # (num_envs, obs_dim), what the next action answers

    def _make(self, make: Callable[[], gym.Env], num_envs: int) -> None:
        for index in range(num_envs):
            env = Resumable(make())
            env.name = f"Environment {index} of {env.name}"
            self.envs.append(env)

    def reset(self, steps_before: int = 0) -> None:
        """Begins an episode in each environment, each seeded for itself, and for how many steps were taken before."""
        seeds = (derive_seed("training environment", index) for index in itertools.count(steps_before * len(self.envs)))
        self.obs = np.array([env.reset(seed=seed)[0] for env, seed in zip(self.envs, seeds, strict=False)], np.float32)

    def step(self, action: NDArray[np.float32]) -> Step:
        """Takes one action (num_envs, action_dim) in each environment; where an episode ends, the next begins."""
        last_obs, next_obs, rewards, terminations, truncations, reports = [], [], [], [], [], []
        for env, own_action in zip(self.envs, action, strict=True):
            obs, reward, terminated, truncated, _ = env.step(own_action)
            last_obs.append(obs)
            rewards.append(float(reward))
            terminations.append(terminated)
            truncations.append(truncated)
            if terminated or truncated:
                reports.append(self._names.kept(env.report))
                obs, _ = env.reset()
            next_obs.append(obs)
        self.obs = np.array(next_obs, np.float32)
        return Step(np.array(last_obs, np.float32), rewards, terminations, truncations, reports)

    def abandon(self) -> None:
        """Gives the running episodes up; the next thing is a reset."""
        self.obs = self.obs[:0]

    def state_dict(self) -> dict[str, Any]:
        """The running episode of every environment."""
        return {"episodes": [env.state_dict() for env in self.envs if len(self.obs)]}

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Brings the episodes back; the numbers of the environments whose episode could not be."""
        if not state["episodes"]:  # they were given up
            return []
        pairs = zip(self.envs, state["episodes"], strict=True)
        lost = [index for index, (env, saved) in enumerate(pairs) if not env.load_state_dict(saved)]
        self.obs = np.stack([env.obs for env in self.envs]).astype(np.float32)
        return lost

    def close(self) -> None:
        """Close all environments, even if one of them fails."""
        for env in self.envs:
            close_env(env, env.name)


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
        env = Guarded(self.env)
        obs, info = env.reset(seed=self.seed)
        total, length, ended = 0.0, 0, False
        while not ended:
            if length == MOST_STEPS:
                _check_has_time_limit(env)
            obs, reward, terminated, truncated, info = env.step(policy(obs))
            total, length, ended = total + float(reward), length + 1, terminated or truncated
        return self.names.kept(numbers(info) | {"return": total, "length": float(length)})


def _check_has_time_limit(env: Guarded) -> None:
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


class ReportNames:
    """The names of numbers that a run reports, bounded in number.

    An environment whose infos have new keys in every episode would otherwise add columns to the logs without end.
    """

    def __init__(self) -> None:
        self._known: set[str] = set(LOGGED)
        self._full = False  # that was announced

    def kept(self, report: dict[str, float]) -> dict[str, float]:
        """Return a report without the names that are too many; the first one is announced."""
        if not report.keys() <= self._known:
            new = [name for name in report if name not in self._known]
            room = len(LOGGED) + MOST_NAMES - len(self._known)
            self._known.update(new[:room])
            if len(new) > room and not self._full:
                log.warning("Infos have over %d names, so %s and later ones are not logged.", MOST_NAMES, new[room])
                self._full = True
        return {name: value for name, value in report.items() if name in self._known}


def numbers(info: dict[str, Any]) -> dict[str, float]:
    """Return the entries of an `info` that are single numbers or truth values, as floats.

    An integer beyond the float range becomes infinite. A name that the logs use already gets `info_` in front.
    """
    kinds = (bool, int, float, np.bool_, np.integer, np.floating)
    found = {" ".join(str(name).split()): _as_float(value) for name, value in info.items() if isinstance(value, kinds)}
    return {f"info_{name}" if name in LOGGED else name: value for name, value in found.items()}


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf

"""Report of an environment: whether its runs can be resumed exactly, and what else to expect."""

import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from td3_lightning.envs.checked import RestorableEnv
from td3_lightning.envs.global_generators import States, changed, generator_states
from td3_lightning.errors import EnvError, described, is_ours, require_int
from td3_lightning.reporting.video import as_frame, make_filmed_env
from td3_lightning.training.data_module import MAX_EPISODES, ReplayData
from td3_lightning.training.saved_replay import RESET_HINT

YES, NOTE, NO = "yes", "note", "no"  # NO: a resumed run differs from an uninterrupted one
Step = tuple[NDArray[Any], float, bool, bool]  # observation, reward, terminated, truncated


class Property(NamedTuple):
    """Hold one line of the report."""

    name: str
    verdict: str
    text: str


class Played(NamedTuple):
    """Hold the steps of an episode, its reset as step 0, and the global generators before and after it."""

    steps: list[Step]
    before: States
    after: States
    cost: float  # seconds per step

    def difference(self, other: "Played") -> str:
        """Return what another object does in a different way with the same seed and actions, or an empty text."""
        moved = [name for name in changed(self.after, self.before) if name in changed(self.after, other.after)]
        if moved:
            return f"the environment draws from the global generator of {moved[0]}"
        for number, (one, two) in enumerate(zip(self.steps, other.steps, strict=False)):  # both end, or one differs
            if one[1:] != two[1:] or not np.array_equal(one[0], two[0], equal_nan=True):
                return f"step {number} differs" if number else "the observation of the reset differs"
        return ""


def play(env: RestorableEnv, actions: NDArray[Any], seed: int | None = None) -> Played:
    """Step with actions (steps, action_dim) until the episode ends; without a seed, go on in the running episode."""
    before = generator_states()
    steps = [(np.array(env.obs if seed is None else env.reset(seed=seed)[0]), 0.0, False, False)]
    start = time.perf_counter()
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        steps.append((np.array(obs), float(reward), terminated, truncated))
        if terminated or truncated:
            break
    cost = (time.perf_counter() - start) / max(len(steps) - 1, 1)
    return Played(steps, before, generator_states(), cost)


def env_report(data: ReplayData, episodes: int, steps: int) -> Iterator[str]:
    """Yield the lines of the report.

    Args:
        data: Data module that makes the environments.
        episodes: Number of episodes that one environment plays before its last one is compared, at least 2.
        steps: Steps after which an episode without an end is left, at least 2.

    Raises:
        EnvError: A resumed run differs from an uninterrupted one, or the environment failed.
    """
    require_int("episodes", episodes, 2, MAX_EPISODES)
    require_int("steps", steps, 2, MAX_EPISODES)
    failed = []
    for found in properties(data, episodes, steps):
        yield f"{found.name:<14}{found.verdict:<6}{found.text}"
        failed += [found.name] if found.verdict == NO else []
    if failed:
        what = f"differs from an uninterrupted one ({', '.join(failed)}: no)"
        raise EnvError(f"A resumed run in {data.env_id} {what}. {RESET_HINT}")


def properties(data: ReplayData, episodes: int, steps: int) -> Iterator[Property]:
    """Play episodes of random actions in new and in used training environments, and yield what holds.

    The arguments are those of `env_report`.
    """
    used, last = _new(data), episodes - 1
    actions = [_actions(used, seed, steps) for seed in range(episodes)]
    played = [play(used, own, seed) for seed, own in enumerate(actions)]
    difference = played[0].difference(play(_new(data), actions[0], 0))
    yield _verdict("reproducible", difference, "a seed and actions repeat an episode in a new object")
    middle = (len(played[1].steps) - 1) // 2
    yield _verdict("restorable", difference, "") if difference else _restorable(data, actions, middle)
    fresh = _new(data)
    difference = played[last].difference(play(fresh, actions[last], last))
    kept = [name for name, value in counters(used).items() if counters(fresh).get(name) != value]
    text = f"an episode is the same in a new object and after {last} others"
    if kept and not difference:
        yield Property("independent", NOTE, f"{text}, but reset keeps {', '.join(kept)}")
    else:
        yield _verdict("independent", difference, text)
    yield from (_spaces(used, played), _time_limit(used, played))
    rewards = [step[1] for each in played for step in each.steps[1:]]
    yield Property("reward", YES, f"{min(rewards):.4g} to {max(rewards):.4g} per step of random actions")
    yield Property("cost", YES, f"{1e6 * np.mean([each.cost for each in played]):,.0f} us per step")
    yield _video(data)


def counters(env: gym.Env) -> dict[str, int]:
    """Return the integers that an environment and its wrappers hold, except Gymnasium's and ours, by their names."""
    own: dict[str, int] = counters(env.env) if isinstance(env, gym.Wrapper) else {}
    if not type(env).__module__.startswith(("gymnasium.wrappers.", "td3_lightning.")):
        own |= {f"{type(env).__name__}.{name}": held for name, held in vars(env).items() if type(held) is int}
    return own


def _new(data: ReplayData) -> RestorableEnv:
    """Make a training environment, after draws from the global generators as by other code of a run."""
    for draw in (random.random, np.random.random, lambda: torch.rand(1)):
        draw()
    return RestorableEnv(data.make_env(**data.train_kwargs))


def _actions(env: gym.Env, seed: int, steps: int) -> NDArray[Any]:
    space: Any = env.action_space
    return np.random.default_rng(seed).uniform(space.low, space.high, (steps, *space.shape)).astype(space.dtype)


def _verdict(name: str, difference: str, text: str) -> Property:
    return Property(name, NO, difference) if difference else Property(name, YES, text)


def _restorable(data: ReplayData, actions: list[NDArray[Any]], middle: int) -> Property:
    """Stop in the middle of the second episode, and continue in a new object, as a resumed run does."""
    stopped = _new(data)
    play(stopped, actions[0], 0)
    play(stopped, actions[1][:middle], 1)
    state = stopped.state()
    rest = play(stopped, actions[1][middle:])
    resumed = _new(data)
    resumed.saved = state
    difference = resumed.restore()[0] or rest.difference(play(resumed, actions[1][middle:]))
    return _verdict("restorable", difference, f"an episode continues in a new object after {middle} steps")


def _spaces(env: gym.Env, played: list[Played]) -> Property:
    """Compare the observations with their space. Their shape and finite values have been checked at each step."""
    space: Any = env.observation_space
    obs = np.stack([step[0] for each in played for step in each.steps])
    outside = (obs < space.low) | (obs > space.high)
    notes = [f"observations are {obs.dtype} instead of {space.dtype}"] if obs.dtype != space.dtype else []
    if outside.any():
        row, index = np.argwhere(outside)[0]
        share = f"{outside.any(axis=1).mean():.1%} of the observations are out of the bounds"
        notes.append(f"{share}, for example {obs[row, index]:.4g} at index {index}")
    text = f"all observations are in their space of {space.shape[0]} numbers ({space.dtype})"
    return Property("spaces kept", NOTE if notes else YES, "; ".join(notes) or text)


def _time_limit(env: gym.Env, played: list[Played]) -> Property:
    """Describe how the episodes end. Terminations that all have the same number of steps may be a time limit."""
    name, limit = "time limit", env.spec and env.spec.max_episode_steps
    lengths = [len(each.steps) - 1 for each in played]
    ends = f"episodes of {min(lengths):,} to {max(lengths):,} steps"
    if any(each.steps[-1][3] for each in played):
        return Property(name, YES, f"{ends}, truncated at the limit")
    if all(each.steps[-1][2] for each in played) and len(set(lengths)) == 1 and lengths[0] > 1:
        text = f"all episodes terminate after {lengths[0]:,} steps; if this is a time limit, return it as truncated"
        return Property(name, NOTE, text)
    if limit:
        return Property(name, YES, f"{ends}, the limit of {limit:,} steps truncates")
    return Property(name, NOTE, f"{ends}, and no limit is known; data.env_kwargs.max_episode_steps sets one")


def _video(data: ReplayData) -> Property:
    """Render the first frame of an episode, as `record` does."""
    try:
        _, env = make_filmed_env(data, {})
        env.reset(seed=0)
        height, width, _ = as_frame(env.render()).shape
        env.close()
    except Exception as error:  # an environment may raise anything
        return Property("video", NOTE, f"record is not possible: {error if is_ours(error) else described(error)}")
    return Property("video", YES, f"frames of {width} x {height}")

"""Steps per second and traits of an environment without td3_lightning, as a JSON line. Its packages are those of a row.

benchmarks.environments runs `python benchmarks/environment_traits.py '{"env_id": ...}'` in the environment of each row.
"""

import copy
import json
import random
import sys
import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

SECONDS = 1.0  # of CPU time, because other load on the machine does not change it
STEPS = 200  # of the episode whose observations and end are examined


def flat(value: Any) -> NDArray[Any]:
    """Return all numbers of an observation as one array."""
    if isinstance(value, dict | list | tuple):
        parts = [flat(part) for part in (value.values() if isinstance(value, dict) else value)]
        return np.concatenate(parts) if parts else np.empty(0)
    return np.asarray(value, np.float64).ravel()


def play(env: gym.Env[Any, Any], seed: int, steps: int) -> tuple[list[NDArray[Any]], list[NDArray[Any]], bool, str]:
    """Play an episode with random actions. Return it, its rewards, whether it stays in its space, and its end."""
    actions = copy.deepcopy(env.action_space)  # some environments make a new one at each reset
    actions.seed(seed)
    obs, _ = env.reset(seed=seed)
    rows, rewards, inside, end = [flat(obs)], [], env.observation_space.contains(obs), f"none in {steps} steps"
    for number in range(1, steps + 1):
        obs, reward, terminated, truncated, _ = env.step(actions.sample())
        rows.append(flat(obs))
        rewards.append(flat(reward))
        inside = inside and env.observation_space.contains(obs)
        if terminated or truncated:
            end = f"{'terminated' if terminated else 'truncated'} at {number}"
            break
    return [*rows, *rewards], rewards, inside, end


def same(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> bool:
    """Return whether two episodes are equal to the last bit."""
    return len(one) == len(other) and all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


def speed(env: gym.Env[Any, Any]) -> float:
    """Return steps per second of CPU time with random actions, with the resets."""
    env.reset(seed=0)
    steps, start = 0, time.process_time()
    while time.process_time() < start + SECONDS:
        steps += 1
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()
    return steps / (time.process_time() - start)


def traits(data: dict[str, Any]) -> dict[str, Any]:
    """Examine an environment in episodes of the same seed."""

    def make() -> gym.Env[Any, Any]:
        return gym.make(data["env_id"], **data.get("env_kwargs", {}))

    used = make()
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002, some environments draw from it
    first, rewards, inside, end = play(used, 7, STEPS)
    again = play(used, 7, STEPS)[0]
    play(used, 8, 100)
    rate = speed(used)
    later = play(used, 7, STEPS)[0]
    fresh = play(make(), 7, STEPS)[0]
    other = play(make(), 9, 1)[0]
    return {
        "steps_per_second": round(rate),
        "repeats": same(first, again),
        "used_equals_new": same(later, fresh),
        "first_equals_new": same(first, fresh),
        "seeds_differ": not np.array_equal(first[0], other[0]),
        "in_bounds": bool(inside),
        "end": end,
        "rewards": [float(np.min(rewards)), float(np.max(rewards))],
        "observations": str(used.observation_space)[:200],
        "actions": str(used.action_space)[:200],
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("\n" + json.dumps(traits(json.loads(sys.argv[1]))))

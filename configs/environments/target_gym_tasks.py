"""Tasks of target-gym 0.6 for Gymnasium, such as `target_gym_tasks:cstr-v0`.

The environments that the package has for Gymnasium repeat one initial state unless each reset has a seed, and do not
compile the step. These draw an initial state, and compile it. As in the package's records of its controllers
(`data/baseline_returns.json`), each step has the random key of the reset, and episodes have the recorded length.

    python configs/environments/target_gym_tasks.py cstr 200000 100

prints the mean return, and its standard deviation, of the package's PID controller in 100 episodes with the seeds from
200000 on.
"""

import json
import sys
from importlib.resources import files
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from numpy.typing import NDArray
from target_gym.registry import REGISTRY

RECORDED = json.loads(files("target_gym").joinpath("data", "baseline_returns.json").read_text())


class Task(gym.Env[NDArray[Any], NDArray[Any]]):
    """A task of target-gym's registry with its default parameters and without its time limit."""

    def __init__(self, name: str) -> None:
        task, params = REGISTRY[name].env_factory(), REGISTRY[name].params_cls()
        actions = task.action_space(params)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, task.obs_shape, np.float32)
        self.action_space = gym.spaces.Box(np.asarray(actions.low), np.asarray(actions.high), dtype=np.float32)
        self._first = jax.jit(lambda key: task.reset_env(key, params))
        self._next = jax.jit(lambda key, state, action: task.step_env(key, state, action, params))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[Any], dict[str, Any]]:
        """Return the first observation of the seed, or of a seed that is drawn."""
        super().reset(seed=seed)
        self._key = jax.random.PRNGKey(int(self.np_random.integers(2**31)) if seed is None else seed)
        obs, self._state = self._first(self._key)
        return np.array(obs), {}

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Return the next observation, the reward and whether the task has failed."""
        obs, self._state, reward, terminated, _ = self._next(self._key, self._state, action)
        return np.array(obs), float(reward), bool(terminated), False, {}


class WithError(gym.ObservationWrapper[NDArray[Any], NDArray[Any], NDArray[Any]]):
    """Append asinh((target - value) / scale) of two observed numbers, which resolves small and large errors."""

    def __init__(self, env: gym.Env[NDArray[Any], NDArray[Any]], value: int, target: int, scale: float) -> None:
        super().__init__(env)
        self.value, self.target, self.scale = value, target, scale
        size = gym.spaces.flatdim(env.observation_space) + 1
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def observation(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return the observation with the error."""
        return np.append(obs, np.arcsinh((obs[self.target] - obs[self.value]) / self.scale)).astype(np.float32)


def pid_return(name: str, seed: int) -> float:
    """Return the sum of rewards of the package's PID controller in the episode of a seed."""
    env, controller = gym.make(f"{name}-v0"), REGISTRY[name].make_pid()
    controller.reset()
    obs, _ = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(np.atleast_1d(np.asarray(controller(obs), np.float32)))
        total, ended = total + float(reward), terminated or truncated
    return total


for name in REGISTRY.keys() & RECORDED.keys():
    gym.register(f"{name}-v0", f"{__name__}:Task", max_episode_steps=RECORDED[name]["steps"], kwargs={"name": name})

if __name__ == "__main__":
    name, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    returns = [pid_return(name, seed) for seed in range(first, first + count)]
    print(f"{np.mean(returns):.1f} ± {np.std(returns):.1f}")

"""The setting `data.vector_env`: what steps the training environments."""

import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.vector import VectorEnv, VectorWrapper

from td3_lightning.envs.checked_vector import CheckedVector
from td3_lightning.envs.make import EnvId, env_name, explained
from td3_lightning.envs.vector_env import EnvList, TrainingVectorEnv
from td3_lightning.envs.workers import Workers, signals_blocked
from td3_lightning.errors import import_extra, one_line, refuse
from td3_lightning.seeding import derive_seed

if TYPE_CHECKING:
    VectorName = str | Callable[..., VectorEnv]
else:
    VectorName = str  # the command line and its configurations accept only names

OWN = ("sync", "async", "overlapped")  # how this package steps single environments


def make_training_envs(
    kind: VectorName, make: Callable[[], gym.Env], num_envs: int, name: str, source: EnvId, settings: Mapping[str, Any]
) -> TrainingVectorEnv:
    """Make the training environments.

    Args:
        kind: The setting `data.vector_env`.
        make: Function that makes a single environment with its wrappers, for the kinds in `OWN`.
        num_envs: Number of environments.
        name: Name of the environment in error messages.
        source: Id of the environment, or the function that makes it, for the other kinds.
        settings: Keyword arguments of the environment, for the other kinds.

    Raises:
        UsageError: The environments cannot be made with these settings.
        EnvError: A constructor raised something else.
    """
    if kind == "sync":
        return TrainingVectorEnv(EnvList(make, num_envs))
    if kind in OWN:
        seeds = [derive_seed("environment worker", index) for index in range(num_envs)]
        return TrainingVectorEnv(Workers(make, seeds, name))
    name, maker = f"{name} of {env_name(kind)}", find_maker(kind)
    try:
        with signals_blocked():  # workers of the vector environment inherit this
            env = maker(source, num_envs=num_envs, **settings)
    except Exception as error:
        raise explained(name, {"num_envs": num_envs, **settings}, error) from error
    return TrainingVectorEnv(CheckedVector(env, num_envs, name))


def find_maker(kind: VectorName) -> Callable[..., VectorEnv]:
    """Return the function that makes a vector environment.

    Raises:
        UsageError: The setting has another form, or names no function.
    """
    if callable(kind):
        return kind
    if kind == "envpool":
        return SeededEnvPool
    try:
        return pkgutil.resolve_name(kind)  # type: ignore[no-any-return]
    except Exception as error:  # a module of the user may raise anything
        choices = f"{', '.join(OWN)}, envpool or the module:function of a vector environment ({one_line(error)})"
        raise refuse("data.vector_env", choices, kind, "Use sync, or gymnasium:make_vec, for example.") from error


class SeededEnvPool(VectorWrapper):
    """Make a new pool at each reset with a seed, because EnvPool takes its seed at construction.

    Args:
        env_id: EnvPool's id of the environment, for example "HalfCheetah-v5".
        num_envs: Number of environments.
        settings: EnvPool's options, for example `num_threads` or `max_episode_steps`.

    Raises:
        UsageError: EnvPool is not installed.
    """

    def __init__(self, env_id: str, num_envs: int, **settings: Any) -> None:
        envpool = import_extra("envpool", "data.vector_env envpool", "envpool")
        self._make = partial(envpool.make_gymnasium, env_id, num_envs=num_envs, **settings)
        super().__init__(self._make())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environments, in a new pool if there is a seed. Environment i has the seed `seed + i`."""
        if seed is not None:
            self.env.close()
            self.env = self._make(seed=seed)
        return self.env.reset(options=options)

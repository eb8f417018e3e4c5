"""The setting `data.vector_env`: what steps the training environments."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.vector import VectorEnv, VectorWrapper

from td3_lightning.envs.checked_vector import CheckedVector
from td3_lightning.envs.make import EnvId, env_name
from td3_lightning.envs.vector_env import EnvList, TrainingVectorEnv
from td3_lightning.envs.workers import Workers, signals_blocked
from td3_lightning.errors import EnvError, UsageError, described, install_hint, is_ours, one_line, refuse, shown
from td3_lightning.seeding import derive_seed

if TYPE_CHECKING:
    VectorName = str | Callable[..., VectorEnv]
else:
    VectorName = str  # the command line and its configurations accept only names

OWN = ("sync", "async", "overlapped")  # how this package steps single environments
INTERNAL = {"env_id", "players", "elapsed_step"}  # what EnvPool adds to each info


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
        if is_ours(error):
            raise
        arguments = f"{num_envs} environments and the arguments {shown(dict(settings))}"
        if isinstance(error, gym.error.Error | ValueError | TypeError | AssertionError):
            said = one_line(error).removesuffix(".")
            raise UsageError(
                f"{name} cannot be made with {arguments} ({said}). Change data.vector_env, data.env_kwargs or "
                "data.train_kwargs."
            ) from error
        raise EnvError(f"{name} raised {described(error)} in its constructor. Correct it.") from error
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
    module, _, name = kind.partition(":") if isinstance(kind, str) else ("", "", "")
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
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
        try:
            import envpool
        except ImportError as error:
            raise UsageError(
                f"data.vector_env envpool requires EnvPool, which cannot be imported ({one_line(error)}). "
                f"{install_hint('envpool')}"
            ) from error
        self._make = partial(envpool.make_gymnasium, env_id, num_envs=num_envs, **settings)
        super().__init__(self._make())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environments, in a new pool if there is a seed. Environment i has the seed `seed + i`."""
        if seed is not None:
            self.env.close()
            self.env = self._make(seed=seed)
        return self.env.reset(options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments, and return their infos without EnvPool's own entries."""
        *results, info = self.env.step(actions)
        return *results, {name: value for name, value in info.items() if name not in INTERNAL}

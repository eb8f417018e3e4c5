"""Make environments with their wrappers, and explain why one cannot be made."""

import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.error import UnregisteredEnv
from gymnasium.vector import VectorEnv

from td3_lightning.envs.checked import advice, name_of
from td3_lightning.envs.wrappers import PyBulletWarmReset, RebuildBox2DWorld, with_flat_observations
from td3_lightning.errors import EnvError, UsageError, described, install_hint, is_ours, one_line, refuse, shown

log = logging.getLogger(__name__)
Wrapper = Callable[[gym.Env], gym.Env]
EnvMaker = Callable[..., gym.Env]

if TYPE_CHECKING:
    EnvId = str | EnvMaker
else:
    EnvId = str  # the command line and its configurations accept only ids

PACKAGES = (  # tasks that newcomers try without their package: begin of the name, package, extra
    (".*Bullet", "pybullet_envs_gymnasium", "bullet"),
    ("Fetch|Hand|Adroit|PointMaze|AntMaze", "gymnasium_robotics", "robotics"),
    ("dm_control/", "shimmy", "robotics"),
)
# Packages that may be missing, and the extra that installs them.
EXTRAS = {package: extra for _, package, extra in PACKAGES} | {"pybullet": "bullet", "mujoco": "mujoco"}


def make_wrapped(source: EnvId, settings: Mapping[str, Any], wrappers: Iterable[Wrapper]) -> gym.Env:
    """Make an environment with wrappers and flat observations.

    Args:
        source: Id of the environment, or a function that makes it.
        settings: Keyword arguments of the environment.
        wrappers: Wrappers, innermost first.

    Raises:
        UsageError: The environment or a wrapper does not accept its arguments.
        EnvError: The environment or a wrapper raised something else.
    """
    env = make(source, settings)
    module = type(env.unwrapped).__module__  # episodes of these depend on what the simulator did before
    if module == "gymnasium.envs.box2d.bipedal_walker":
        env = RebuildBox2DWorld(env)
    elif module.startswith("pybullet_envs_gymnasium."):
        env = PyBulletWarmReset(env)
    for wrapper in wrappers:
        env = wrapped(env, wrapper)
    return with_flat_observations(env)


def make(source: EnvId, settings: Mapping[str, Any]) -> gym.Env:
    """Make an environment without wrappers.

    Args:
        source: Id of the environment, or a function that makes it.
        settings: Keyword arguments of the environment.

    Raises:
        UsageError: The environment does not exist, or does not accept the arguments.
        EnvError: The constructor raised an exception.
    """
    try:
        env = source(**settings) if callable(source) else gym.make(source, **settings)
    except Exception as error:
        raise explained(source, settings, error) from error
    if not isinstance(env, gym.Env):
        raise refuse(f"{env_name(source)}()", "a gymnasium.Env", env, "Return an environment from the function.")
    return env


def explained(source: EnvId, settings: Mapping[str, Any], error: Exception) -> Exception:
    """Return the error to raise for a failed construction. It names the cause and a fix."""
    if is_ours(error):
        return error
    name, said = env_name(source), one_line(error).removesuffix(".")[:200]
    if isinstance(error, UnregisteredEnv | gym.error.DeprecatedEnv | gym.error.VersionNotFound):
        return refuse("env_id", f"the id of a registered environment ({said})", source, _suggest_id(name))
    if isinstance(error, ImportError | gym.error.DependencyNotInstalled):
        return UsageError(f"{name} requires a package that cannot be imported ({said}). {_install(name, error)}")
    if isinstance(error, TypeError | ValueError | gym.error.Error | AssertionError) and settings:
        given = f"the arguments {shown(dict(settings))} ({said})"
        return UsageError(f"{name} cannot be made with {given}. Change data.env_kwargs or data.train_kwargs.")
    fix = advice(error, "Correct the environment or its arguments.")
    return EnvError(f"{name} raised {described(error)} in its constructor. {fix}")


def _suggest_id(env_id: str) -> str:
    """Suggest the id of an environment."""
    module, colon, name = env_id[:100].rpartition(":")  # no id is longer
    for begins, package, extra in PACKAGES:
        if not colon and re.match(begins, name):
            return f"Use {package}:{name} with the extra {extra}."
    close = get_close_matches(name, gym.registry, n=1, cutoff=0.8)
    similar = f"Use {module}{colon}{close[0]}" if close else "Use Pendulum-v1, for example"
    return f"{similar}, or my_module:{name} if your own module my_module registers it."


def _install(name: str, error: Exception) -> str:
    """Advise how to install the package that an environment requires, or which version of the environment to use."""
    if "moved to" in str(error):  # v2 and v3 of Gymnasium's MuJoCo tasks
        known = [each for each in gym.registry if each.startswith(f"{name.rpartition('-v')[0]}-v")]
        return f"Use {known[-1]}."
    causes = [error, error.__cause__, error.__context__]
    missing = [str(cause.name).split(".")[0] for cause in causes if isinstance(cause, ImportError) and cause.name]
    extras = [EXTRAS[each] for each in [*missing, *(word for word in EXTRAS if word in str(error))] if each in EXTRAS]
    if extras:
        return install_hint(extras[0])
    return "Install it, or use my_module:Id-v0 with the name of your own module."


def wrapped(env: gym.Env, wrapper: Wrapper) -> gym.Env:
    """Wrap an environment.

    Raises:
        UsageError: The wrapper does not fit the environment.
    """
    name = getattr(wrapper_class(wrapper), "__name__", type(wrapper).__name__)
    try:
        outer = wrapper(env)
    except Exception as error:
        if is_ours(error):
            raise
        raise UsageError(f"{name} does not fit {name_of(env)} ({described(error)}). Change data.wrappers.") from error
    if not isinstance(outer, gym.Env):
        raise refuse(f"the result of {name}", "a gymnasium.Env", outer, "Return the wrapped environment.")
    return outer


def env_name(source: str | Callable[..., Any]) -> str:
    """Name an environment by its id or by the function that makes it."""
    made_by = source.func if isinstance(source, functools.partial) else source
    return made_by if isinstance(made_by, str) else getattr(made_by, "__name__", type(made_by).__name__)


def wrapper_class(wrapper: Wrapper) -> Any:
    """Return the class that a wrapper makes. Configurations contain partial calls of a class."""
    parts = (wrapper, getattr(wrapper, "func", None), *getattr(wrapper, "args", ()))
    return next((part for part in parts if isinstance(part, type)), wrapper)


def close_env(env: gym.Env | VectorEnv, name: str) -> None:
    """Close an environment. Log a warning on failure, because the work of the run is already done."""
    try:
        env.close()
    except Exception as error:  # an environment may raise anything
        log.warning("%s raised %s in close(). The run is not affected.", name, described(error))

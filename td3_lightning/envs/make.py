"""Make environments with their wrappers."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from td3_lightning.envs.constructor_errors import explain_constructor_error
from td3_lightning.envs.flatten import with_flat_observations
from td3_lightning.envs.lifetime import Lifetime, StepTimeout, close_env, must_pass, name_of
from td3_lightning.envs.wrappers import PyBulletWarmReset, RebuildBox2DWorld
from td3_lightning.errors import EnvError, UsageError, described, one_line, refuse, require_int

Wrapper = Callable[[gym.Env], gym.Env]
EnvMaker = Callable[..., gym.Env]


if TYPE_CHECKING:
    EnvId = str | EnvMaker
else:
    EnvId = str  # the command line and its configurations accept only ids


def make_wrapped(
    source: EnvId, settings: Mapping[str, Any], wrappers: Iterable[Wrapper], step_timeout: float | None
) -> gym.Env:
    """Make an environment with wrappers, flat observations and a time limit for each call.

    Args:
        source: Id of the environment, or a function that makes it.
        settings: Keyword arguments of the environment.
        wrappers: Wrappers, innermost first.
        step_timeout: Time limit of a step or a reset in seconds. None means no limit.

    Raises:
        UsageError: The environment or a wrapper does not accept its arguments.
        EnvError: The environment or a wrapper raised something else.
    """
    env = make(source, settings)
    try:
        env = _with_reproducible_resets(env)
        for wrapper in wrappers:
            env = wrapped(env, wrapper)
        env = with_flat_observations(env)
        return Lifetime(env) if step_timeout is None else StepTimeout(env, step_timeout)
    except BaseException:  # a wrapper may raise anything
        close_env(env, env_name(source))
        raise


def _with_reproducible_resets(env: gym.Env) -> gym.Env:
    """Wrap environments whose first episodes depend on what the simulator did before."""
    module = type(env.unwrapped).__module__
    if module == "gymnasium.envs.box2d.bipedal_walker":
        return RebuildBox2DWorld(env)
    return PyBulletWarmReset(env) if module.startswith("pybullet_envs_gymnasium.") else env


def make(source: EnvId, settings: Mapping[str, Any]) -> gym.Env:
    """Make an environment without wrappers.

    Args:
        source: Id of the environment, or a function that makes it.
        settings: Keyword arguments of the environment.

    Raises:
        UsageError: The environment does not exist, or does not accept the arguments.
        EnvError: The constructor raised an exception.
    """
    if not callable(source) and not isinstance(source, str):
        fix = 'Use "Pendulum-v1" or lambda: MyEnv().'
        raise refuse("env_id", "an id or a function that returns an environment", source, fix)
    _check_episode_steps(settings)
    try:
        env = gym.make(source, **settings) if isinstance(source, str) else source(**settings)
    except BaseException as error:  # an environment may call sys.exit
        if must_pass(error):
            raise
        raise explain_constructor_error(source, env_name(source), settings, error) from error
    if not isinstance(env, gym.Env):
        raise refuse(f"{env_name(source)}()", "a gymnasium.Env", env, "Return an environment from the function.")
    return env


def wrapped(env: gym.Env, wrapper: Wrapper) -> gym.Env:
    """Wrap an environment. Lists become arrays if a wrapper of Gymnasium expects arrays.

    Raises:
        UsageError: The wrapper does not fit the environment.
        EnvError: A wrapper from another package raised an exception.
    """
    made_by = wrapper_class(wrapper)
    name = getattr(made_by, "__name__", type(wrapper).__name__)
    try:
        outer = _with_arrays(wrapper, made_by)(env)
    except BaseException as error:  # a wrapper may call sys.exit
        if must_pass(error):
            raise
        gymnasiums = str(getattr(made_by, "__module__", "")).startswith("gymnasium.")
        if isinstance(error, gym.error.Error | AssertionError | ValueError) or gymnasiums:
            said = one_line(error) or type(error).__name__
            raise UsageError(f"{name} does not fit {name_of(env)} ({said}). Change data.wrappers.") from error
        raise EnvError(f"{name} raised {described(error)} around {name_of(env)}. Change data.wrappers.") from error
    if not isinstance(outer, gym.Env):
        raise refuse(f"the result of {name}", "a gymnasium.Env", outer, "Return the wrapped environment.")
    return outer


def env_name(source: str | Callable[..., Any]) -> str:
    """Name an environment by its id or by the function that makes it."""
    made_by = source.func if isinstance(source, functools.partial) else source
    return made_by if isinstance(made_by, str) else getattr(made_by, "__name__", type(made_by).__name__)


def _check_episode_steps(settings: Mapping[str, Any]) -> None:
    steps = settings.get("max_episode_steps")
    if steps is not None and steps != -1:
        fix = "Use -1 for no limit." if isinstance(steps, int) else ""
        require_int("max_episode_steps", steps, least=1, fix=fix)


def wrapper_class(wrapper: Wrapper) -> Any:
    """Return the class that a wrapper makes. Configurations contain partial calls of a class."""
    parts = (wrapper, getattr(wrapper, "func", None), *getattr(wrapper, "args", ()))
    return next((part for part in parts if isinstance(part, type)), wrapper)


def _with_arrays(wrapper: Wrapper, made_by: Any) -> Wrapper:
    """Convert lists to arrays in a partial call, for the parameters that expect arrays."""
    if not isinstance(wrapper, functools.partial) or not isinstance(made_by, type):
        return wrapper
    expected = inspect.signature(made_by).parameters
    arrays = {
        name: _array(value)
        for name, value in wrapper.keywords.items()
        if isinstance(value, list | tuple) and name in expected and "ndarray" in str(expected[name].annotation)
    }
    return functools.partial(wrapper, **arrays)


def _array(numbers: Any) -> Any:
    """Return a float32 array, as spaces use, if it represents the numbers exactly."""
    array = np.array(numbers, np.float64)
    exact = array.astype(np.float32)
    return exact if np.array_equal(exact, array) else array

"""Make environments with their wrappers and check their spaces."""

import functools
import inspect
import itertools
import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import FrameType
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.envs import registration
from gymnasium.spaces import Box

from td3_lightning.envs.checked import advice
from td3_lightning.envs.lifetime import must_pass, name_of
from td3_lightning.errors import (
    EnvError,
    UsageError,
    described,
    one_line,
    refuse,
    require_int,
    shown,
)

Wrapper = Callable[[gym.Env], gym.Env]


EnvMaker = Callable[..., gym.Env]


if TYPE_CHECKING:
    EnvId = str | EnvMaker
else:
    EnvId = str  # the command line and its configurations accept only ids


# Packages that may be missing, and how to install them.
PACKAGES = {
    "pybullet_envs_gymnasium": "td3_lightning[bullet]",
    "pybullet": "td3_lightning[bullet]",
    "pybullet_data": "td3_lightning[bullet]",
    "mujoco": "td3_lightning[mujoco]",
    "gymnasium_robotics": "gymnasium-robotics",
    "Box2D": "gymnasium[box2d]",
    "pygame": "gymnasium[box2d]",
    "ale_py": "ale-py",
}


OF_MAKE = ("max_episode_steps", "disable_env_checker")  # arguments of gymnasium.make itself


def make(source: str | EnvMaker, settings: Mapping[str, Any]) -> gym.Env:
    """Make an environment.

    Args:
        source: Its id, or a function that makes it.
        settings: Keyword arguments.

    Raises:
        UsageError: There is no such environment, or it does not accept the arguments.
        EnvError: Its constructor raised.
    """
    if not callable(source) and not isinstance(source, str):
        raise refuse("env_id", "an id or a function that returns an environment", source, 'Use "Pendulum-v1".')
    _check_episode_steps(settings)
    try:
        env = gym.make(source, **settings) if isinstance(source, str) else source(**settings)
    except BaseException as error:  # an environment may call sys.exit
        if must_pass(error):
            raise
        raise _explained(source, settings, error) from error
    if not isinstance(env, gym.Env):
        raise refuse(f"{env_name(source)}()", "a gymnasium.Env", env, "Return an environment from the function.")
    return env


def wrapped(env: gym.Env, wrapper: Wrapper) -> gym.Env:
    """Wrap an environment; lists become arrays where a wrapper of Gymnasium expects arrays.

    Raises:
        UsageError: The wrapper does not fit.
        EnvError: A wrapper that is not Gymnasium's raised something else.
    """
    made_by = _made_by(wrapper)
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


def env_name(source: str | EnvMaker) -> str:
    """Name an environment by its id or by the function that makes it."""
    made_by = source.func if isinstance(source, functools.partial) else source
    return made_by if isinstance(made_by, str) else getattr(made_by, "__name__", type(made_by).__name__)


def _check_episode_steps(settings: Mapping[str, Any]) -> None:
    steps = settings.get("max_episode_steps")
    if steps is not None and steps != -1:
        fix = "Use -1 for no limit." if isinstance(steps, int) else ""
        require_int("max_episode_steps in data.env_kwargs", steps, least=1, fix=fix)


def _explained(source: str | EnvMaker, settings: Mapping[str, Any], error: BaseException) -> Exception:
    """Turn an exception while making an environment into one that names the cause."""
    name = env_name(source)
    if isinstance(error, ImportError | gym.error.DependencyNotInstalled):
        return UsageError(f"{name} requires a package that cannot be imported ({_short(error)}). {_install(error)}")
    frames = [frame for frame, _ in traceback.walk_tb(_first(error).__traceback__)]
    if isinstance(error, TypeError) and (why := _unfit_arguments(source, settings, frames)):
        return UsageError(
            f"{name} does not accept the arguments {shown(dict(settings))} ({why}). Change data.env_kwargs, "
            "data.train_kwargs or, for a record, env_kwargs."
        )
    if isinstance(source, str) and isinstance(error, gym.error.Error | ValueError) and _is_registrys(frames):
        return refuse("env_id", f"the id of a registered environment ({_short(error)})", source, _use(source))
    arguments = f" with the arguments {shown(dict(settings))}" if settings else ""
    fix = advice(error, "Correct the environment or its arguments." if settings else "Correct the environment.")
    return EnvError(f"{name} raised {described(_first(error))} in its constructor{arguments}. {fix}")


def _short(error: BaseException) -> str:
    """The first sentence of an error."""
    return one_line(str(error).split(". ")[0].removesuffix("."))


def _first(error: BaseException) -> BaseException:
    """The exception of the constructor, which gymnasium.make replaces by one of the same type."""
    cause = error.__cause__
    return cause if cause is not None and type(cause) is type(error) else error


def _is_registrys(frames: list[FrameType]) -> bool:
    return bool(frames) and frames[-1].f_code.co_filename == registration.__file__


def _unfit_arguments(source: str | EnvMaker, settings: Mapping[str, Any], frames: list[FrameType]) -> str:
    """Say why a call does not accept its arguments; nothing if the call was made and failed later.

    That is the call of the constructor, or of a base class by a constructor that passes on its keyword arguments.
    """
    creator, arguments = _call(source, settings)
    if creator is None or (problem := _problem(creator, arguments)):
        return problem if creator is not None else ""
    caller = frames[-1]
    for kind, base in _constructors(creator):
        if caller.f_code is getattr(vars(kind)["__init__"], "__code__", None):
            passed = inspect.getargvalues(caller).keywords
            return _problem(base, caller.f_locals.get(passed, {}), partly=True) if passed else ""
    return ""


def _call(source: str | EnvMaker, settings: Mapping[str, Any]) -> tuple[EnvMaker | None, dict[str, Any]]:
    """The function that makes the environment, and its keyword arguments."""
    if not isinstance(source, str):
        return source, dict(settings)
    try:
        spec = gym.spec(source)
        entry = spec.entry_point
        creator: Any = registration.load_env_creator(entry) if isinstance(entry, str) else entry
    except Exception:  # whatever a registration may raise; then the call was not reached
        return None, {}
    own = {name: value for name, value in settings.items() if name not in OF_MAKE}
    return creator, {**spec.kwargs, **own}


def _constructors(creator: Any) -> list[tuple[type, Any]]:
    """The classes of a constructor that have an `__init__`, each with the next one's `__init__`."""
    kinds = [kind for kind in getattr(creator, "__mro__", ()) if "__init__" in vars(kind)]
    return [(kind, vars(base)["__init__"]) for kind, base in itertools.pairwise(kinds)]


def _problem(call: Any, arguments: Mapping[str, Any], partly: bool = False) -> str:
    """Say why a signature does not accept keyword arguments; with `partly`, others may be missing."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # code that is not Python's
        return ""
    try:
        if partly:
            signature.bind_partial(**arguments)
        else:
            signature.bind(**arguments)
    except TypeError as error:
        names = [name for name in signature.parameters if name != "self"]
        return f"{one_line(error)}; it accepts {', '.join(names) or 'none'}"
    return ""


def _install(error: BaseException) -> str:
    """Say what to install."""
    causes = [error, error.__cause__, error.__context__]
    names = [str(cause.name).split(".")[0] for cause in causes if isinstance(cause, ImportError) and cause.name]
    text = str(error).lower()
    names += [package for package in PACKAGES if package.lower() in text]
    if not names:
        return "Install what it requires."
    return f"Install {PACKAGES[names[0]]}." if names[0] in PACKAGES else f'Install the package with "{names[0]}".'


def _use(env_id: str) -> str:
    """Suggest an id."""
    if "Bullet" in env_id and ":" not in env_id:
        return f"Use pybullet_envs_gymnasium:{env_id} with td3_lightning[bullet]."
    if env_id.startswith(("Fetch", "Hand", "Adroit", "PointMaze", "AntMaze")) and ":" not in env_id:
        return f"Use gymnasium_robotics:{env_id} with the package gymnasium-robotics."
    close = get_close_matches(env_id, gym.registry, n=1)
    return f"Use {close[0]}." if close else "Use package:Id if a package registers it."


def _made_by(wrapper: Wrapper) -> Any:
    """The class behind a wrapper; a configuration gives a partial call."""
    parts = (wrapper, getattr(wrapper, "func", None), *getattr(wrapper, "args", ()))
    return next((part for part in parts if isinstance(part, type)), wrapper)


def _with_arrays(wrapper: Wrapper, made_by: Any) -> Wrapper:
    """Convert the lists of a partial call to arrays for parameters that expect arrays."""
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
    """An array of float32, which spaces have, if it holds the numbers exactly."""
    array = np.array(numbers, np.float64)
    exact = array.astype(np.float32)
    return exact if np.array_equal(exact, array) else array


def check_box(env: gym.Env, what: str, env_id: str) -> Box:
    """Return a space as a one-dimensional box of floats, or raise a `UsageError` with a wrapper that makes it one."""
    space = getattr(env, "observation_space" if what == "observations" else "action_space", None)
    if not isinstance(space, Box):
        wrapper = (
            " or add a wrapper to data.wrappers, for example gymnasium.wrappers.FlattenObservation"
            if what == "observations"
            else ""
        )
        raise UsageError(
            f"{what} of {env_id} must be a Box, got {shown(space)}. Use an environment with continuous {what}{wrapper}."
        )
    if what == "observations":
        _check_obs_shape(space, env_id)
    else:
        _check_action_box(space, env_id)
    return space


def _check_obs_shape(space: Box, env_id: str) -> None:
    if len(space.shape) == 3 and space.dtype == np.uint8:
        raise UsageError(
            f"observations of {env_id} must have one axis, got frames of shape {space.shape}. Use data.pixels and "
            "model.encoder, as car_pixels.yaml does."
        )
    if len(space.shape) != 1 or not space.shape[0]:
        raise UsageError(
            f"observations of {env_id} must have one axis and at least one number, got shape {space.shape}. Add "
            "gymnasium.wrappers.FlattenObservation to data.wrappers."
        )


def _check_action_box(space: Box, env_id: str) -> None:
    if len(space.shape) != 1 or not space.shape[0]:
        raise UsageError(
            f"actions of {env_id} must have one axis and at least one number, got shape {space.shape}. Add "
            "td3_lightning.FlattenAction to data.wrappers."
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise UsageError(
            f"actions of {env_id} must be floats, got {shown(space)} of {space.dtype}. Use an environment with "
            "continuous actions, or add a wrapper that rounds them to data.wrappers."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        width = space.high.astype(np.float32) - space.low.astype(np.float32)
    if not np.isfinite(width).all():  # infinite for bounds of +-float32 max, too
        raise UsageError(
            f"actions of {env_id} must have finite bounds whose difference is a float32, got "
            f"{shown(space)}. Add td3_lightning.SymmetricActionBounds to data.wrappers, with a practical bound."
        )
    if not (space.low < space.high).all():
        raise UsageError(
            f"actions of {env_id} must have low < high, got {shown(space)}. Add a wrapper that removes the constant "
            "actions to data.wrappers."
        )

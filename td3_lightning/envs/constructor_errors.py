"""Explain why an environment cannot be constructed."""

import inspect
import itertools
import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import FrameType
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration

from td3_lightning.envs.checked import advice
from td3_lightning.errors import EnvError, UsageError, described, one_line, refuse, shown

Creator = Callable[..., Any]

# Packages that may be missing, and how to install them.
PACKAGES = {
    "pybullet_envs_gymnasium": "td3_lightning[bullet]",
    "pybullet": "td3_lightning[bullet]",
    "pybullet_data": "td3_lightning[bullet]",
    "mujoco": "td3_lightning[mujoco]",
    "gymnasium_robotics": "td3_lightning[robotics]",
    "shimmy": "td3_lightning[robotics]",
    "Box2D": "gymnasium[box2d]",
    "pygame": "gymnasium[box2d]",
    "ale_py": "ale-py",
}

MAKE_ARGUMENTS = ("max_episode_steps", "disable_env_checker")  # consumed by gymnasium.make


def explain_constructor_error(
    source: str | Creator, name: str, settings: Mapping[str, Any], error: BaseException
) -> Exception:
    """Build an exception that names the cause of a failed construction.

    Args:
        source: Id of the environment, or the function that makes it.
        name: Name of the environment in the message.
        settings: Keyword arguments of the environment.
        error: The exception.
    """
    if isinstance(error, ImportError | gym.error.DependencyNotInstalled):
        return UsageError(
            f"{name} requires a package that cannot be imported ({_short(error)}). {_install(error, source)}"
        )
    frames = [frame for frame, _ in traceback.walk_tb(_original(error).__traceback__)]
    if isinstance(error, TypeError) and (why := _unfit_arguments(source, settings, frames)):
        return UsageError(
            f"{name} does not accept the arguments {shown(dict(settings))} ({why}). Change data.env_kwargs, "
            "data.train_kwargs, data.eval_kwargs or, for a record, env_kwargs."
        )
    if isinstance(source, str) and isinstance(error, gym.error.Error | ValueError) and _is_from_registry(frames):
        return refuse("env_id", f"the id of a registered environment ({_short(error)})", source, _suggest_id(source))
    arguments = f" with the arguments {shown(dict(settings))}" if settings else ""
    fix = advice(error, "Correct the environment or its arguments." if settings else "Correct the environment.")
    return EnvError(f"{name} raised {described(_original(error))} in its constructor{arguments}. {fix}")


def _short(error: BaseException) -> str:
    """Return the first sentence of an error, at most 200 characters."""
    text = one_line(str(error).split(". ")[0].removesuffix("."))
    return text if len(text) <= 200 else f"{text[:197]}..."


def _original(error: BaseException) -> BaseException:
    """Return the exception of the constructor, which gymnasium.make replaces by one of the same type."""
    cause = error.__cause__
    return cause if cause is not None and type(cause) is type(error) else error


def _is_from_registry(frames: list[FrameType]) -> bool:
    return bool(frames) and frames[-1].f_code.co_filename == registration.__file__


def _unfit_arguments(source: str | Creator, settings: Mapping[str, Any], frames: list[FrameType]) -> str:
    """Explain why a call does not accept its arguments. Return an empty string if the call failed later.

    The call is that of the constructor, or that of a base class if a constructor forwards its keyword arguments.
    """
    creator, arguments = _call(source, settings)
    if creator is None:
        return ""
    if problem := _mismatch(creator, inspect.Signature.bind, arguments):
        return problem
    caller = frames[-1]
    for kind, base in _constructors(creator):
        if caller.f_code is getattr(vars(kind)["__init__"], "__code__", None):
            passed = inspect.getargvalues(caller).keywords
            bind = inspect.Signature.bind_partial
            return _mismatch(base, bind, caller.f_locals.get(passed, {})) if passed else ""
    return ""


def _call(source: str | Creator, settings: Mapping[str, Any]) -> tuple[Creator | None, dict[str, Any]]:
    """Return the function that makes the environment, and its keyword arguments."""
    if not isinstance(source, str):
        return source, dict(settings)
    try:
        spec = gym.spec(source.split(":")[-1])  # gym.make has imported the module
        entry = spec.entry_point
        creator: Any = registration.load_env_creator(entry) if isinstance(entry, str) else entry
    except Exception:  # a registration may raise anything before the call
        return None, {}
    own = {name: value for name, value in settings.items() if name not in MAKE_ARGUMENTS}
    return creator, {**spec.kwargs, **own}


def _constructors(creator: Any) -> list[tuple[type, Any]]:
    """Return each class with an `__init__`, paired with the `__init__` of its next base class."""
    kinds = [kind for kind in getattr(creator, "__mro__", ()) if "__init__" in vars(kind)]
    return [(kind, vars(base)["__init__"]) for kind, base in itertools.pairwise(kinds)]


def _mismatch(call: Any, bind: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """Explain why the signature of a call cannot be bound. Return an empty string if it can."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # not written in Python
        return ""
    try:
        bind(signature, **arguments)
    except TypeError as error:
        names = [name for name in signature.parameters if name != "self"]
        return f"{one_line(error)}; it accepts {', '.join(names) or 'none'}"
    return ""


def _install(error: BaseException, source: str | Creator) -> str:
    """Advise which package to install, or which version of the environment to use."""
    if "moved to" in str(error) and isinstance(source, str):  # v2 and v3 of Gymnasium's MuJoCo tasks
        name = source.split(":")[-1].rpartition("-v")[0] + "-v"
        known = [env_id for env_id in gym.registry if env_id.startswith(name)]
        return f"Use {known[-1]}."
    causes = [error, error.__cause__, error.__context__]
    names = [str(cause.name).split(".")[0] for cause in causes if isinstance(cause, ImportError) and cause.name]
    text = str(error).lower()
    names += [package for package in PACKAGES if package.lower() in text]
    if not names:
        return "Install the missing package."
    return f"Install {PACKAGES[names[0]]}." if names[0] in PACKAGES else f'Install the package with "{names[0]}".'


def _suggest_id(env_id: str) -> str:
    """Suggest the id of an environment."""
    env_id = env_id[:100]  # no id is longer
    if "Bullet" in env_id and ":" not in env_id:
        return f"Use pybullet_envs_gymnasium:{env_id} with td3_lightning[bullet]."
    if env_id.startswith(("Fetch", "Hand", "Adroit", "PointMaze", "AntMaze")) and ":" not in env_id:
        return f"Use gymnasium_robotics:{env_id} with td3_lightning[robotics]."
    if env_id.startswith("dm_control/"):
        return f"Use shimmy:{env_id} with td3_lightning[robotics]."
    module, colon, name = env_id.rpartition(":")
    close = get_close_matches(name, gym.registry, n=1)
    return f"Use {module}{colon}{close[0]}." if close else "Use package:Id if a package registers it."

"""Checks of stored settings against the constructors that receive them."""

import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

import gymnasium as gym

from td3_lightning.errors import UsageError
from td3_lightning.serialization.configurable import Configurable
from td3_lightning.serialization.values import InvalidValueError, brief, flag, integer, number, text

Named = Callable[[str, str], bool]  # (text, setting): whether the user wrote this text for this setting
PACKAGE = "td3_lightning."
MAX_STACK = 1_000  # observations

# RecordVideo writes files to a path in its arguments; the converters import other frameworks.
WRAPPERS = frozenset(
    name
    for name in gym.wrappers.__all__
    if isinstance(kind := vars(gym.wrappers).get(name), type)
    and issubclass(kind, gym.Wrapper)
    and name != "RecordVideo"
)

# Numbers and times of day.
NUMERIC = re.compile(
    r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|([\d-]+[T ])?\d+(:\d\d)+"
)

# A dotted name, a path, a URL, or text that a YAML parser would read as something other than text.
SUSPICIOUS = re.compile(r"[:/\\~\[\]{}\x00-\x1f\x7f]|\.\S|^\.|\.$|^[\s!&*%@`\"'#|>?,-]")


class NotNamedError(UsageError):
    """A checkpoint names code or a file that the user did not name."""

    def __init__(self, named: str, setting: str) -> None:
        super().__init__(f"{setting} names {named!r}")
        self.named, self.setting = named, setting


def check_arguments(values: Any, function: Callable[..., Any], setting: str, named: Named) -> None:
    """Check keyword arguments against the parameters and annotations of a function or a class.

    Args:
        values: The arguments, as `values.plain` returns them.
        function: The function or class.
        setting: Name of the arguments, such as "model".
        named: Returns whether the user named a value.

    Raises:
        InvalidValueError: A value has another type than its parameter.
        NotNamedError: A value names code or a file.
    """
    if not isinstance(values, dict):
        raise InvalidValueError(setting, "a mapping", values)
    known, hints = inspect.signature(function).parameters, _hints(function)
    for name, value in values.items():
        if name not in known:
            raise InvalidValueError(f"a key of {setting}", f"one of {', '.join(known)}", name)
        check_setting(value, hints.get(name, Any), f"{setting}.{name}", named)


def check_setting(value: Any, hint: Any, setting: str, named: Named) -> None:
    """Check a value against an annotation, as `check_arguments` does."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        _check_union(value, get_args(hint), setting, named)
    elif origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in get_args(hint)):
            raise InvalidValueError(setting, f"one of {', '.join(map(repr, get_args(hint)))}", value)
    elif hint in LEAVES:
        LEAVES[hint](value, setting)
        if hint is str:
            check_text(value, setting, named)
    elif origin in (list, Sequence):
        _check_list(value, get_args(hint)[0], setting, named)
    elif isinstance(hint, type) and is_dataclass(hint) and isinstance(value, dict) and "class_path" not in value:
        check_arguments(value, hint, setting, named)
    elif isinstance(hint, type) and (issubclass(hint, Configurable) or is_dataclass(hint)):
        _check_spec(value, hint, setting, named)
    elif get_args(hint)[1:] == (gym.Env,) and get_args(hint)[0] == [gym.Env]:  # Wrapper of envs/make.py
        _check_spec(value, gym.Wrapper, setting, named)
    elif origin is dict and not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        raise InvalidValueError(setting, "a mapping with strings as keys", value)
    else:
        check_free(value, setting, named)


def _check_none(value: Any, setting: str) -> None:
    if value is not None:
        raise InvalidValueError(setting, "null", value)


LEAVES: dict[Any, Callable[[Any, str], None]] = {
    bool: flag,
    int: integer,
    float: number,
    str: text,
    type(None): _check_none,
    None: _check_none,
}


def _check_union(value: Any, hints: Sequence[Any], setting: str, named: Named) -> None:
    """Check that one of several annotations fits; if none does, raise the first error, or that of unnamed code."""
    errors: list[UsageError] = []
    for hint in hints:
        try:
            return check_setting(value, hint, setting, named)
        except UsageError as error:
            errors.append(error)
    raise next((error for error in errors if isinstance(error, NotNamedError)), errors[0])


def _check_list(value: Any, hint: Any, setting: str, named: Named) -> None:
    if not isinstance(value, list):
        raise InvalidValueError(setting, "a list", value)
    for one in value:
        check_setting(one, hint, setting, named)


def _check_spec(value: Any, kind: type, setting: str, named: Named) -> None:
    """Check a mapping that describes an object by its class and its arguments."""
    if isinstance(value, str) and named(value, setting):  # the user's own function or class
        return
    if isinstance(value, str):
        raise NotNamedError(value, setting)
    if not isinstance(value, dict) or not isinstance(value.get("class_path"), str):
        raise InvalidValueError(setting, "a mapping with a class_path", value)
    if extra := value.keys() - {"class_path", "init_args", "dict_kwargs"}:
        raise InvalidValueError(f"a key of {setting}", "class_path or init_args", next(iter(extra)))
    path, arguments = value["class_path"], value.get("init_args", {})
    found = allowed_class(path, kind)
    if found is not None and "dict_kwargs" not in value:
        check_arguments(arguments, found, f"{setting}.init_args", named)
        if arguments.get("stack_size", 0) > MAX_STACK:  # of a wrapper that allocates so many observations
            raise InvalidValueError(f"{setting}.init_args.stack_size", f"at most {MAX_STACK}", arguments["stack_size"])
    elif named(path, setting):
        check_free(arguments, f"{setting}.init_args", named)
        check_free(value.get("dict_kwargs", {}), f"{setting}.dict_kwargs", named)
    else:
        raise NotNamedError(path, setting)


def check_free(value: Any, setting: str, named: Named) -> None:
    """Check a value of any type: it names no class and no file, unless the user did."""
    if isinstance(value, str):
        check_text(value, setting, named)
    elif isinstance(value, list):
        for one in value:
            check_free(one, setting, named)
    elif isinstance(value, dict):
        for key, one in value.items():
            if isinstance(key, str) and key.startswith("__"):
                raise InvalidValueError(f"a key of {setting}", "a name without leading underscores", key)
            check_free(key, f"a key of {setting}", named)
            if key == "class_path" and not (isinstance(one, str) and named(one, setting)):
                raise NotNamedError(one if isinstance(one, str) else brief(one), setting)
            check_free(one, setting, named)


def check_text(value: str, setting: str, named: Named) -> None:
    """Raise `NotNamedError` for text that may be a dotted name, a path or YAML, unless the user wrote it."""
    if SUSPICIOUS.search(value) and not NUMERIC.fullmatch(value) and not named(value, setting):
        raise NotNamedError(value, setting)


def allowed_class(path: str, kind: type) -> type | None:
    """Return a class of this package, or a Gymnasium wrapper, that a checkpoint may refer to.

    Args:
        path: Its import path.
        kind: Its base class.

    Returns:
        The class; None for another path or a class of another kind.
    """
    module, _, name = path.rpartition(".")
    if module.startswith("gymnasium.wrappers"):
        found = vars(gym.wrappers)[name] if name in WRAPPERS else None
        allowed = found is not None and module in ("gymnasium.wrappers", found.__module__)
    else:
        found = _ours(module, name)
        allowed = isinstance(found, type) and found.__module__.startswith(PACKAGE) and not inspect.isabstract(found)
    return found if allowed and isinstance(found, type) and issubclass(found, kind) else None


def _ours(module: str, name: str) -> Any:
    """Look up a name in a module of this package."""
    if not re.fullmatch(r"td3_lightning(\.[a-z][a-z0-9_]*)*", module):
        return None
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the parameters of a function or constructor; empty if they cannot be resolved."""
    called: Any = type.__getattribute__(function, "__init__") if isinstance(function, type) else function
    try:
        return typing.get_type_hints(called)
    except (NameError, TypeError):
        return {}

"""Objects that a configuration names by class_path and a checkpoint holds as plain data."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from td3_lightning.errors import UsageError


class Configurable:
    """Something that is made anew from plain data.

    A subclass keeps each argument of its constructor as the attribute of that name, because its
    attributes are what a checkpoint holds of it.
    """

    def plain(self) -> dict[str, Any]:
        """The object, and those that it was given, as plain data, in the form that a config file has too.

        Raises:
            UsageError: It has other attributes than arguments, so that it could not be made anew.
        """
        kind = type(self)
        if wrong := ", ".join(sorted(vars(self).keys() ^ inspect.signature(kind).parameters.keys())):
            raise UsageError(
                f"{kind.__name__} has to keep each argument as the attribute of that name, and nothing besides, but "
                f"{wrong} came; rename it, or work it out when it is needed."
            )
        arguments = {name: _plain(value) for name, value in vars(self).items()}
        return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": arguments}


Kind = TypeVar("Kind", bound=Configurable)


def from_config(kind: type[Kind], data: Any) -> Kind | None:
    """Make an object of a kind from its plain data; return None if the data describes no known class of that kind.

    Only classes that are imported already are found, so a checkpoint cannot run code.

    Raises:
        UsageError: The class does not take these arguments.
    """
    path = data.get("class_path") if isinstance(data, Mapping) else None
    found = known_recipes(kind).get(path) if isinstance(path, str) else None
    if found is None:
        return None
    arguments = data.get("init_args") or {}
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise UsageError(f"{path} must be given arguments that it takes, got {arguments!r}. {error}.") from error
    return found(**{name: _made(value) for name, value in arguments.items()})


def known_recipes(kind: type[Kind]) -> dict[str, type[Kind]]:
    """Return the imported subclasses of a kind, by their import paths."""
    return {f"{sub.__module__}.{sub.__qualname__}": sub for sub in _subclasses(kind)}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.plain() if isinstance(value, Configurable) else value


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return [_made(one) for one in value]
    made = from_config(Configurable, value)
    return value if made is None else made


def _subclasses(kind: type[Kind]) -> list[type[Kind]]:
    return [sub for direct in kind.__subclasses__() for sub in (direct, *_subclasses(direct))]

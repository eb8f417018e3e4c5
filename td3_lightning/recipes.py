"""Objects that a configuration names by class_path and a checkpoint holds as plain data."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from td3_lightning.errors import UsageError


class Recipe:
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


Kind = TypeVar("Kind", bound=Recipe)


def from_plain(kind: type[Kind], data: Any) -> Kind | None:
    """An object of a kind from its plain data; None if the data is of no class of that kind.

    Only classes that are imported already are found, so a checkpoint cannot run code.
    """
    if not isinstance(data, Mapping):
        return None
    known = {f"{sub.__module__}.{sub.__qualname__}": sub for sub in _subclasses(kind)}
    found = known.get(data.get("class_path", ""))
    return found(**{name: _made(value) for name, value in data.get("init_args", {}).items()}) if found else None


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.plain() if isinstance(value, Recipe) else value


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return [_made(one) for one in value]
    made = from_plain(Recipe, value)
    return value if made is None else made


def _subclasses(kind: type[Kind]) -> list[type[Kind]]:
    return [sub for direct in kind.__subclasses__() for sub in (direct, *_subclasses(direct))]

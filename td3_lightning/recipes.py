"""Objects that a configuration names by class_path and a checkpoint holds as plain data."""

from collections.abc import Mapping
from typing import Any, TypeVar


class Recipe:
    """Something that is made anew from plain data.

    A subclass keeps each argument of its constructor as the attribute of that name, because its
    attributes are what a checkpoint holds of it.
    """

    def plain(self) -> dict[str, Any]:
        """The object as plain data, in the form that a config file has too."""
        return {"class_path": f"{type(self).__module__}.{type(self).__qualname__}", "init_args": vars(self).copy()}


Kind = TypeVar("Kind", bound=Recipe)


def from_plain(kind: type[Kind], data: Any) -> Kind | None:
    """An object of a kind from its plain data; None if the data is of no class of that kind.

    Only classes that are imported already are found, so a checkpoint cannot run code.
    """
    if not isinstance(data, Mapping):
        return None
    known = {f"{sub.__module__}.{sub.__qualname__}": sub for sub in _subclasses(kind)}
    found = known.get(data.get("class_path", ""))
    return found(**data.get("init_args", {})) if found else None


def _subclasses(kind: type[Kind]) -> list[type[Kind]]:
    return [sub for direct in kind.__subclasses__() for sub in (direct, *_subclasses(direct))]

"""Objects that configurations and checkpoints describe by class_path and init_args."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from td3_lightning.errors import UsageError

PACKAGE = __name__.split(".")[0]


class Configurable:
    """Base class of objects that can be rebuilt from plain data.

    A subclass must store each constructor argument as an attribute of the same name and have no other attributes,
    because a checkpoint stores the attributes.
    """

    def __repr__(self) -> str:
        """Return the class and its arguments, for example "Linear(start=1.0, end=0.0, steps=10, begin=0)"."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def plain(self) -> dict[str, Any]:
        """Return the object and its nested objects as plain data, in the form of a configuration file.

        Raises:
            UsageError: The attributes differ from the arguments, so the object could not be rebuilt.
        """
        kind = type(self)
        if wrong := ", ".join(sorted(vars(self).keys() ^ inspect.signature(kind).parameters.keys())):
            raise UsageError(
                f"{kind.__name__} must store each constructor argument as an attribute of the same name and no other "
                f"attributes, got a mismatch in {wrong}. Rename the attribute, or compute it when it is used."
            )
        arguments = {name: _plain(value) for name, value in vars(self).items()}
        return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": arguments}


Kind = TypeVar("Kind", bound=Configurable)


def from_config(kind: type[Kind], data: Any) -> Kind | None:
    """Build an object from plain data; return None if the data describes no known class of the given kind.

    Only imported classes are found, so a checkpoint cannot run code.

    Raises:
        TypeError: The class does not take these arguments.
    """
    path = data.get("class_path") if isinstance(data, Mapping) else None
    found = known_classes(kind).get(path) if isinstance(path, str) else None
    if found is None:
        return None
    arguments = data.get("init_args") or {}
    return found(**{name: _built(value) for name, value in arguments.items()})


def known_classes(kind: type[Kind]) -> dict[str, type[Kind]]:
    """Return the imported subclasses of a kind, by their import paths, and ours also as `td3_lightning.NAME`."""
    found: dict[str, type[Kind]] = {}
    for sub in kind.__subclasses__():
        own = [PACKAGE] if sub.__module__.startswith(f"{PACKAGE}.") else []
        found |= {f"{module}.{sub.__qualname__}": sub for module in (sub.__module__, *own)} | known_classes(sub)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.plain() if isinstance(value, Configurable) else value


def _built(value: Any) -> Any:
    if isinstance(value, list):
        return [_built(one) for one in value]
    built = from_config(Configurable, value)
    return value if built is None else built

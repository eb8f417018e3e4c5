"""Read the settings of a class from its constructor and docstring."""

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Note|Example):$")


@dataclass(frozen=True)
class Setting:
    """One argument of a constructor, as a row of the reference."""

    name: str
    type: str
    default: str
    description: str


def find(path: str) -> Any:
    """Import the object with a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def settings_of(constructor: Any, skip: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Yield the arguments of a class with their annotations, defaults and docstring entries.

    Raises:
        LookupError: An argument has no entry in the section "Args" of the docstring.
    """
    described = descriptions(inspect.getdoc(constructor) or "")
    for name, parameter in inspect.signature(constructor).parameters.items():
        if name in skip:
            continue
        if name not in described:
            raise LookupError(f"{constructor.__name__} must describe {name} in the Args of its docstring.")
        yield Setting(name, annotation(parameter), default(parameter), described[name])


def descriptions(docstring: str) -> dict[str, str]:
    """Return the entries of the section "Args" of a Google-style docstring."""
    found: dict[str, str] = {}
    inside, last = False, ""
    for line in docstring.splitlines():
        if SECTION.match(line):
            inside = line == "Args:"
        elif inside and (entry := re.match(r"^ {4}\*{0,2}(\w+)(?: \([^)]*\))?: (.*)$", line)):
            last = entry[1]
            found[last] = entry[2]
        elif inside and last and line.startswith(" " * 8):
            found[last] += " " + line.strip()
    return found


def annotation(parameter: inspect.Parameter) -> str:
    """Return the type of an argument in the form of its source, without module names."""
    kind = parameter.annotation
    text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)


def default(parameter: inspect.Parameter) -> str:
    """Return the default of an argument in YAML's spelling, or "required"."""
    value = parameter.default
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, tuple):
        value = list(value)
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if is_plain(value) else str(value)


def is_plain(value: Any) -> bool:
    """Return whether a value is None or a bool, which YAML spells differently."""
    return value is None or isinstance(value, bool)

"""Class of the agent: named by a flag or a configuration file, else the class in the checkpoint."""

import importlib
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.algorithm.td7 import TD7
from td3_lightning.errors import UsageError, one_line

# The agents of this package. A checkpoint names no other class, unless the user names it, too.
AGENTS: dict[str, type[TD3]] = {"td3_lightning.TD3": TD3, "td3_lightning.TD7": TD7}
DEFAULT = "td3_lightning.TD3"
KEY = "model.class_path"


def agent_path(name: Any) -> str:
    """Return the import path of an agent that the user names: TD7, td3_lightning.TD7 or a subclass my_module.MyTD3.

    Raises:
        UsageError: There is no such agent.
    """
    for path, kind in AGENTS.items():
        if name in (path, kind.__name__, f"{kind.__module__}.{kind.__qualname__}"):
            return path
    if isinstance(name, str) and "." in name and agent_class(name) is not None:
        return name
    known = {"td3": DEFAULT, "td7": "td3_lightning.TD7"}
    close = get_close_matches(str(name).split(".")[-1].lower(), known, n=1)
    fix = f"Use {known[close[0]]}." if close else "Use TD7, for example."
    raise UsageError(f"{KEY} must be {' or '.join(AGENTS)} or a subclass, got {one_line(name)[:100]}. {fix}")


def agent_class(path: str) -> type[TD3] | None:
    """Return the class at an import path, None if there is no agent."""
    module, _, name = path.rpartition(".")
    try:
        found = AGENTS.get(path) or getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError):
        return None
    return found if isinstance(found, type) and issubclass(found, TD3) else None


def with_class_flags(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with `--model NAME` as `--model.class_path NAME`."""
    return [f"--{KEY}{word.removeprefix('--model')}" if word.split("=")[0] == "--model" else word for word in words]

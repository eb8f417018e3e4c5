"""Class of the agent: `model.class_path` in a configuration file or a flag, else the class in the checkpoint."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.algorithm.td7 import TD7
from td3_lightning.cli.config_files import find_config, parse_file_flags
from td3_lightning.errors import UsageError, one_line
from td3_lightning.reporting.run_dir import config_of

# The classes that a command line or a checkpoint may name. Nothing is imported because a checkpoint names it.
AGENTS: dict[str, type[TD3]] = {"td3_lightning.TD3": TD3, "td3_lightning.TD7": TD7}
DEFAULT = "td3_lightning.TD3"
KEY = "model.class_path"
FLAG = f"--{KEY}"
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")  # of a class, for the short flag --model TD7
FILE = re.compile(r".*\.(ya?ml|json)")


class OtherAgentError(Exception):
    """The checkpoint holds another agent than the one that the command line was built for.

    Args:
        path: Import path of the checkpoint's agent.
        source: Path of the checkpoint.
    """

    def __init__(self, path: str, source: str) -> None:
        super().__init__(path)
        self.agent = AgentClass(path, is_named=True, source=source)


@dataclass
class AgentClass:
    """Class of the agent of a command.

    Args:
        path: Its import path, a key of `AGENTS`.
        is_named: Whether the user or a checkpoint named it, so that a checkpoint must not hold another one.
        source: Path of the checkpoint that holds it, "" if none is known.
    """

    path: str = DEFAULT
    is_named: bool = False
    source: str = ""

    @property
    def kind(self) -> type[TD3]:
        """The class."""
        return AGENTS[self.path]

    @classmethod
    def named_in(cls, words: Sequence[str]) -> "AgentClass":
        """Return the class that the last flag or else the last configuration file names, by default TD3.

        Args:
            words: Words of the command line, as `with_class_flags` returns them.

        Raises:
            UsageError: There is no such agent.
        """
        names = [*_in_files(words), *_in_flags(words)]
        paths = [class_path(name) for name in names]
        return cls(paths[-1], is_named=True) if paths else cls()

    def check(self, checkpoint: Mapping[str, Any], source: str) -> None:
        """Check that a checkpoint holds this agent.

        Raises:
            UsageError: It holds another one than the user named.
            OtherAgentError: It holds another one, and the user named none.
        """
        held = next(path for path, kind in AGENTS.items() if kind.algorithm == checkpoint.get("algorithm", "TD3"))
        if held == self.path:
            self.source = source
            return
        if self.is_named:
            raise UsageError(f"model.class_path must be {held}, as in {source}, got {self.path}. {_own_config(source)}")
        raise OtherAgentError(held, source)

    def check_setting(self, message: str) -> None:
        """Raise `UsageError` if a parser's message is about a setting that another agent has, and this one has not."""
        unknown = re.search(r"(?:option '|--)(?:\w+\.)?model\.(\w+)", message)
        name = unknown[1] if unknown else ""
        others = [path for path, kind in AGENTS.items() if name in signature(kind).parameters]
        if others and self.path not in others:
            if self.source:
                raise UsageError(
                    f"model.{name} requires {others[0]}, got {self.path} in {self.source}. {_own_config(self.source)}"
                )
            raise UsageError(f"{self.path} has no setting {name}. Remove it, or use --model {others[0]}.")


def class_path(name: Any) -> str:
    """Return the import path of an agent for its path or its short name.

    Raises:
        UsageError: There is no such agent.
    """
    for path, kind in AGENTS.items():
        if name in (path, kind.__name__, f"{kind.__module__}.{kind.__qualname__}"):
            return path
    close = get_close_matches(str(name).split(".")[-1].upper(), ["TD3", "TD7"], n=1)
    fix = f"Use {close[0]}." if close else "Use TD7, for example."
    raise UsageError(f"model.class_path must be {' or '.join(AGENTS)}, got {one_line(name)[:100]}. {fix}")


class ClassPath:
    """`class_path` as an argument type that `--help` shows as `str`."""

    def __call__(self, name: Any) -> str:
        """Return the import path of an agent."""
        return class_path(name)

    def __str__(self) -> str:
        """Return the name of the type."""
        return "str"


def with_class_flags(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with `--model NAME` and `--model.init_args.X` in their flat form."""
    found = list(words)
    for number, word in enumerate(found):
        flag, equals, value = word.partition("=")
        following = value if equals else found[number + 1] if number + 1 < len(found) else ""
        if flag == "--model" and NAME.fullmatch(following) and not FILE.fullmatch(following):
            found[number] = FLAG + equals + value
        elif flag.startswith("--model.init_args."):
            found[number] = word.replace(".init_args.", ".", 1)
    return found


def _own_config(checkpoint: str) -> str:
    return f"Remove it, and use the configuration of the checkpoint: --config {config_of(Path(checkpoint))}."


def _in_flags(words: Sequence[str]) -> Iterator[str]:
    """Yield the names of classes in the flags."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        if flag == FLAG and (equals or following):
            yield value if equals else following


def _in_files(words: Sequence[str]) -> Iterator[Any]:
    """Yield the names of classes in the configuration files."""
    try:
        names = parse_file_flags(words)[0].config
    except argparse.ArgumentError:  # `Precedence` explains it
        return
    for name in names:
        content: dict[str, Any] = yaml.safe_load(find_config(name).read_text(encoding="utf-8"))
        model = content.get("model")
        if isinstance(model, str):
            yield model
        elif isinstance(model, Mapping) and "class_path" in model:
            yield model["class_path"]
        if KEY in content:
            yield content[KEY]

"""Configuration files, found by name."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader

from td3_lightning.errors import UsageError

PACKAGE = Path(__file__).parents[1]


SECTIONS = ("trainer", "model", "data", "collector", "checkpoint")


class Strict(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, of which YAML's readers keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node."""
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1 and key.value != "<<":
                raise yaml.MarkedYAMLError(None, None, f'"{key.value}" stands there twice', key.start_mark)
        return super().construct_mapping(node, deep)


def find_config(name: str) -> Path:
    """Finds the file that a `--config` means.

    Args:
        name: A path, or a bare name such as "car.yaml" or "original/car.yaml", which is looked for in the
            working directory, then in its `configs`, then among the configurations of the package.

    Returns:
        The file, which holds a mapping.

    Raises:
        UsageError: There is no such file, or it is not YAML, or not a mapping.
    """
    for folder in _folders():
        if (folder / name).is_file():
            _check_yaml(folder / name)
            return folder / name
    places = dict.fromkeys(str(folder.resolve()) for folder in _folders() if folder.is_dir())
    known = {str(path.with_suffix("")): path.as_posix() for folder in _folders()[1:] for path in _names(folder)}
    close = get_close_matches(name.removesuffix(".yaml"), known, n=1)
    hint = f"did you mean {known[close[0]]}" if close else f"there are {', '.join(sorted(known.values()))}"
    raise UsageError(f'No configuration "{name}" is in {", ".join(places)}; {hint}.')


def is_config(name: str) -> bool:
    """Return whether `find_config` finds a file of this name."""
    return any((folder / name).is_file() for folder in _folders())


def without_empty_sections(path: Path) -> Path | str:
    """Return a configuration file, or its content as YAML without the sections that have no content.

    A section whose keys are all commented out is null to YAML. It sets nothing, as if it were absent, so it must not
    discard what an earlier file sets.
    """
    text = path.read_text()
    content = yaml.load(text, Strict)
    empty = [name for name in SECTIONS if name in content and content[name] is None]
    if not empty:
        return path
    if any(value is not None for value in content.values()):
        content = get_loader("yaml")(text)  # the parser's, which reads 1e3 as a number
    return as_yaml({name: value for name, value in content.items() if name not in empty})


def as_yaml(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML that a parser reads back with the same types: every value is quoted and has a tag."""
    return yaml.safe_dump(dict(settings), default_style='"', width=10**9, sort_keys=False)


def _folders() -> list[Path]:
    shipped = PACKAGE / "configs"  # in a wheel; beside the package in a checkout
    return [Path(), Path("configs"), shipped if shipped.is_dir() else PACKAGE.parent / "configs"]


def _names(folder: Path) -> list[Path]:
    return [path.relative_to(folder) for path in folder.rglob("*.yaml")]


def _check_yaml(path: Path) -> None:
    try:
        content = yaml.load(path.read_bytes(), Strict)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}; mend it there.") from error
    try:
        json.dumps(content, skipkeys=True, default=str)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} must not contain itself, got an alias to a part that holds it. Remove it.") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a configuration; it wants sections such as data, model and trainer.")

"""Configuration files, found by name."""

import argparse
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader
from yaml.constructor import SafeConstructor

from td3_lightning.errors import OTHER_YAML_ERRORS, UsageError, one_line, refuse

PACKAGE = Path(__file__).parents[1]
SECTIONS = ("trainer", "model", "data", "collector", "checkpoint")
SPACES = "spaces"  # folder of the search spaces
MAX_VALUES = 100_000  # of a file with its aliases expanded; a shipped one has 100


class StrictLoader(yaml.SafeLoader):
    """Refuse a mapping with the same key twice, of which other loaders keep the last value, and endless merge keys."""

    merged = 0  # values that merge keys have inserted

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return the node of a mapping as it is written, before the mappings of its merge keys are inserted."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen and key.value != "<<":
                raise yaml.MarkedYAMLError(None, None, f'"{key.value}" occurs twice', key.start_mark)
            seen.add(key.value)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Insert the mappings of merge keys. A short file could multiply them, as with aliases."""
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(merged, yaml.MappingNode):
                        self.flatten_mapping(merged)
                        self.merged += len(merged.value)
                    if self.merged > MAX_VALUES:
                        raise yaml.MarkedYAMLError(
                            None, None, f"more than {MAX_VALUES:,} merged values", key.start_mark
                        )
        super().flatten_mapping(node)


def _with_yaml_errors(construct: Callable[..., Any]) -> Callable[..., Any]:
    def constructed(loader: Any, node: yaml.Node) -> Any:
        try:
            return construct(loader, node)
        except (ValueError, LookupError, AttributeError) as error:
            raise yaml.YAMLError(one_line(error)) from error

    return constructed


# The errors for a text such as "!!bool x" or 2025-31-12 are no YAMLErrors, and jsonargparse handles no others.
for tag in (f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "timestamp")):
    SafeConstructor.add_constructor(tag, _with_yaml_errors(SafeConstructor.yaml_constructors[tag]))


def parse_file_flags(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the values of the flags that name files, and the other words.

    Raises:
        argparse.ArgumentError: A flag has no value, or a long one begins with a single dash.
    """
    check_dashes(words)
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    flags.add_argument("-c", "--config", action="append", default=[])
    flags.add_argument("--ckpt_path")
    return flags.parse_known_args(words)


def check_dashes(words: Iterable[str]) -> None:
    """Raise `argparse.ArgumentError` for a long flag with a single dash, but not for -c with the name of a file."""
    for word in words:
        if re.fullmatch(r"-(c[a-z_]+|(checkpoint|collector)\..*)(=.*)?", word, re.DOTALL) and not is_config(word[2:]):
            raise argparse.ArgumentError(None, f"unrecognized arguments: {word}")


def find_config(name: str) -> Path:
    """Return the file that a `--config` refers to.

    Args:
        name: Path relative to the working directory, to its folder `configs` or to the configurations of the package,
            searched in this order. Examples: "car.yaml", "original/car.yaml".

    Raises:
        UsageError: The file does not exist, or it or one of its sections is not a YAML mapping.
    """
    known = [path for folder in _folders()[1:] for path in _names(folder)]
    path = _find(name, "configuration", _folders(), known)
    _check_sections(path, _check_yaml(path, "with sections such as data and trainer", "Add them."))
    return path


def find_space(name: str) -> Path:
    """Return the file that a `--space` refers to.

    Args:
        name: Path relative to the working directory, or to the folder `spaces` of the configurations.

    Raises:
        UsageError: The file does not exist, or does not contain a YAML mapping.
    """
    folders = [folder / SPACES for folder in _folders()[1:]]
    known = [path.relative_to(folder) for folder in folders for path in folder.rglob("*.yaml")]
    path = _find(name, "search space", [Path(), *folders], known)
    _check_yaml(path, "with a range or choices for each setting", "Add model.actor_lr: {low: 1e-5, high: 1e-3}.")
    return path


def _find(name: str, kind: str, folders: Sequence[Path], names: Sequence[Path]) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    places = dict.fromkeys(str(folder.resolve()) for folder in folders if folder.is_dir())
    known = {str(path.with_suffix("")): path.as_posix() for path in names}
    close = get_close_matches(name.removesuffix(".yaml"), known, n=1)
    hint = f"did you mean {known[close[0]]}?" if close else f"use one of {_listed(known.values())}."
    if name and any((folder / name).is_dir() for folder in folders):
        raise UsageError(f"The {kind} {name} must be a file, got a folder; {hint}")
    if name and Path(name).exists():
        raise UsageError(f"The {kind} {name} must be a file, got a pipe or a device. Save it as a YAML file.")
    raise UsageError(f'There is no {kind} "{name}" in {", ".join(places)}; {hint}')


def _listed(names: Collection[str]) -> str:
    """List the files, and the folders of the others, which would be too many for a sentence."""
    files = sorted(name for name in names if "/" not in name)
    folders = sorted({name.split("/")[0] for name in names if "/" in name})
    return ", ".join(files) + (f", or one in {', '.join(folders)}" if folders else "")


def is_config(name: str) -> bool:
    """Return whether `find_config` finds a file of this name."""
    return any((folder / name).is_file() for folder in _folders())


def without_empty_sections(path: Path) -> Path | str:
    """Return a configuration file, or its content as YAML without the sections that have no content.

    YAML reads a section whose keys are all commented out as null. It must not discard the settings of an earlier
    file. `model.init_args` becomes part of `model`, beside its class_path.
    """
    text = path.read_text(encoding="utf-8")
    content = yaml.load(text, StrictLoader)
    empty = [name for name in SECTIONS if name in content and content[name] is None]
    model = content.get("model")
    is_flat = not isinstance(model, str) and not (isinstance(model, dict) and "init_args" in model)
    if not empty and is_flat and text.isascii():  # the parser reads a file in the encoding of the system
        return path
    if any(value is not None for value in content.values()):
        content = parse_yaml(path)  # the loader of the parser reads 1e3 as a number
    if not is_flat:
        content["model"] = flat(content["model"], path)
    return as_yaml({name: value for name, value in content.items() if name not in empty})


def parse_yaml(path: Path) -> Any:
    """Return the content of a file as the parser of the command line reads it.

    Raises:
        UsageError: A value is not valid, such as `._`, which YAML takes for a number.
    """
    try:
        return get_loader("yaml")(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, *OTHER_YAML_ERRORS) as error:
        raise UsageError(f"{path} must be valid YAML, got an error: {_reason(error)}. Correct it.") from error


def flat(model: str | dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings of the agent beside its class_path.

    Args:
        model: The name of the class, or a mapping with class_path and init_args.
        path: The file.

    Raises:
        UsageError: `init_args` is not a mapping, or a setting is also outside of it.
    """
    if isinstance(model, str):
        return {"class_path": model}
    arguments = model.get("init_args") or {}
    outside = model.keys() - {"class_path", "init_args"}
    if not isinstance(arguments, dict) or outside:
        got = ", ".join(sorted(outside)) or repr(arguments)
        raise UsageError(f"model in {path} must have only class_path and init_args, got {got}. Move it to init_args.")
    return {**({"class_path": model["class_path"]} if "class_path" in model else {}), **arguments}


def as_yaml(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML that a parser reads back with the same types: every value is quoted and has a tag."""
    return yaml.safe_dump(dict(settings), default_style='"', width=10**9, sort_keys=False)


def _folders() -> list[Path]:
    shipped = PACKAGE / "configs"  # in a wheel; a checkout has the folder beside the package
    return [Path(), Path("configs"), shipped if shipped.is_dir() else PACKAGE.parent / "configs"]


def _names(folder: Path) -> list[Path]:
    paths = [path.relative_to(folder) for path in folder.rglob("*.yaml")]
    return [path for path in paths if path.parts[0] != SPACES]


def _check_sections(path: Path, content: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a section that is a number or a list, and for a key that is no name.

    jsonargparse discards such sections, or fails to unpack them.
    """
    for name in SECTIONS:
        if not isinstance(content.get(name), dict | str | None):
            raise refuse(f"{name} in {path}", "a mapping", content[name], "Write one setting per line below it.")
    for part in (content, *(content.get(name) for name in SECTIONS)):
        for key in part if isinstance(part, dict) else ():
            if not isinstance(key, str) or not key:
                raise refuse(f"A key in {path}", "the name of a setting", key, "Use text that is not empty.")


def _check_yaml(path: Path, content_of_mapping: str, fix: str) -> dict[Any, Any]:
    """Return the mapping in a YAML file."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), StrictLoader)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} must be UTF-8, got another encoding at byte {error.start}. Convert it.") from error
    except RecursionError as error:
        raise UsageError(f"{path} must be valid YAML, got too many nested brackets. Remove them.") from error
    except (yaml.YAMLError, *OTHER_YAML_ERRORS, OSError) as error:
        raise UsageError(f"{path} must be valid YAML, got an error: {_reason(error)}. Correct it.") from error
    _check_size(path, content)
    if not isinstance(content, dict):
        kind = "nothing" if content is None else type(content).__name__
        raise UsageError(f"{path} must be a mapping {content_of_mapping}, got {kind}. {fix}")
    return content


def _reason(error: Exception) -> str:
    """Return the problem and its place."""
    mark: yaml.Mark | None = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or not problem:
        return re.sub(r' in "<unicode string>",', " at", one_line(error))
    if problem.startswith("but "):
        problem = f"{getattr(error, 'context', None) or ''} {problem}".strip()
    return f"{one_line(problem)} (line {mark.line + 1}, column {mark.column + 1})"


def _check_size(path: Path, content: Any) -> None:
    """Raise `UsageError` if a file has too many values. Aliases can multiply them, or repeat them without an end."""
    count, parts = 0, [content]
    while parts:
        part = parts.pop()
        count += 1
        if count > MAX_VALUES:
            raise UsageError(f"{path} must have at most {MAX_VALUES:,} values, got aliases to more. Remove them.")
        parts.extend(part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())

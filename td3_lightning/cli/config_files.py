"""Configuration files: found by name, and parsed once."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader

from td3_lightning.errors import OTHER_YAML_ERRORS, UsageError, one_line, refuse

PACKAGE = Path(__file__).parents[1]
SECTIONS = ("trainer", "model", "data", "collector", "checkpoint")
SPACES = "spaces"  # folder of the search spaces


@dataclass(frozen=True)
class ConfigFile:
    """A configuration file. In its settings, `model` is a mapping with the settings beside `class_path`."""

    path: Path
    content: dict[str, Any]

    def find(self, key: str) -> list[Any]:
        """Return the value of a dotted name in a list, which is empty if the file does not have it."""
        section, _, name = key.rpartition(".")
        places = ((self.content, key), (self.content.get(section), name))
        return [place[own] for place, own in places if isinstance(place, dict) and own in place][:1]


def read_config(name: str) -> ConfigFile:
    """Read the file that a `--config` refers to.

    Args:
        name: Path relative to the working directory, to its folder `configs` or to the configurations of the package,
            searched in this order. Examples: "car.yaml", "original/car.yaml".

    Raises:
        UsageError: The file does not exist, or is not a YAML mapping.
    """
    path = _find(name, "configuration", _folders(), shipped_configs())
    content = read_yaml(path)
    if "model" in content:
        content["model"] = _flat(content["model"])
    if isinstance(best := content.get("checkpoint"), dict) and best.get("save_top_k") == 1:
        del best["save_top_k"]  # of an earlier version, which could keep several
    # A section whose keys are all commented out must not discard the settings of an earlier file.
    return ConfigFile(path, {key: held for key, held in content.items() if key not in SECTIONS or held is not None})


def read_space(name: str) -> dict[str, Any]:
    """Read the file that a `--space` refers to: a path relative to the working directory or to a folder `spaces`.

    Raises:
        UsageError: The file does not exist, or does not contain a YAML mapping.
    """
    folders = [folder / SPACES for folder in _folders()[1:]]
    known = [path.relative_to(folder).as_posix() for folder in folders for path in folder.rglob("*.yaml")]
    path = _find(name, "search space", [Path(), *folders], known)
    return read_yaml(path)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        UsageError: It is not valid, or no mapping.
    """
    try:
        content = get_loader("yaml")(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, *OTHER_YAML_ERRORS) as error:
        raise UsageError(f"{path} must be valid YAML, got an error: {one_line(error)}. Correct it.") from error
    if not isinstance(content, dict):
        raise refuse(str(path), "a mapping with sections such as data and trainer", content, "Add them.")
    return content


def shipped_configs() -> list[str]:
    """Return the names of the configurations of the working directory's `configs` and of the package."""
    found = {path.relative_to(folder) for folder in _folders()[1:] for path in folder.rglob("*.yaml")}
    return sorted(path.as_posix() for path in found if path.parts[0] != SPACES)


def _flat(model: Any) -> Any:
    """Return the settings of the agent beside its class_path, for a class name or LightningCLI's `init_args`."""
    if isinstance(model, str):
        return {"class_path": model}
    if not isinstance(model, dict):
        return model
    return {name: model[name] for name in model if name != "init_args"} | (model.get("init_args") or {})


def _find(name: str, kind: str, folders: Sequence[Path], known: Collection[str]) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    names = {each.removesuffix(".yaml"): each for each in known}
    close = get_close_matches(name.removesuffix(".yaml"), names, n=1)
    shown = ", ".join(each for each in known if "/" not in each)
    hint = f"did you mean {names[close[0]]}?" if close else f"use one of {shown}."
    places = dict.fromkeys(str(folder.resolve()) for folder in folders if folder.is_dir())
    raise UsageError(f'There is no {kind} "{name}" in {", ".join(places)}; {hint}')


def _folders() -> list[Path]:
    shipped = PACKAGE / "configs"  # in a wheel; a checkout has the folder beside the package
    return [Path(), Path("configs"), shipped if shipped.is_dir() else PACKAGE.parent / "configs"]

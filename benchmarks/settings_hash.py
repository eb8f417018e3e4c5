"""Hash of a configuration's settings, which shows whether a published result is one of the settings that ship."""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from benchmarks.workloads import ROOT

LENGTH = 12  # hexadecimal digits


def config_of(task: str) -> Path:
    """Return the configuration file of a task in index.csv."""
    folder = next((each for each in ("environments", "original", "td7") if task.startswith(f"{each}_")), "")
    return ROOT / "configs" / folder / f"{task.removeprefix(f'{folder}_')}.yaml"


def settings_hash(path: Path) -> str:
    """Return the hash of a configuration.

    Comments, the order of the keys, the seed and the package in a class path have no influence.
    """
    settings = yaml.safe_load(path.read_text())
    settings.pop("seed_everything", None)
    text = json.dumps(_without_packages(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def _without_packages(value: Any) -> Any:
    """Return the value with "Linear" instead of "td3_lightning.Linear", for example, in each class path."""
    if isinstance(value, list):
        return [_without_packages(each) for each in value]
    if not isinstance(value, dict):
        return value
    short = {"class_path": value["class_path"].rpartition(".")[2]} if "class_path" in value else {}
    return {name: _without_packages(each) for name, each in value.items()} | short

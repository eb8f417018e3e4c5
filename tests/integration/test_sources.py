"""Test that the comparison with the sources lists every setting of the sources."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ORIGINALS = sorted(ROOT.joinpath("configs", "original").glob("*.yaml"))
SECTIONS = re.split(r"^## ", (ROOT / "docs" / "sources.md").read_text(), flags=re.MULTILINE)[1:]


def settings(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the settings by dotted name. Settings of classes have the name of the argument."""
    for key, value in config.items():
        if isinstance(value, dict) and not {"class_path", "init_args"} & set(value) and key != "env_kwargs":
            yield from settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@pytest.mark.parametrize("path", ORIGINALS, ids=lambda path: path.stem)
def test_every_setting_is_compared_with_the_source(path: Path) -> None:
    (section,) = (text for text in SECTIONS if f"`original/{path.name}`" in text.splitlines()[0])
    said = dict(re.findall(r"`([\w.]+): ([^`]+)`", section))
    for name, value in settings(yaml.safe_load(path.read_text())):
        if isinstance(value, int | float | list) and not isinstance(value, bool) and "class_path" not in str(value):
            assert name in said, name
            assert yaml.safe_load(said[name]) == value, name


def test_every_source_has_a_comparison() -> None:
    assert [path.stem for path in ORIGINALS] == ["car", "config_agent", "lander", "walker"]
    assert len(SECTIONS) == 4


def test_every_row_has_a_status_of_the_legend() -> None:
    legend = {"same", "fixed", "different", "partial"}
    rows = [line for section in SECTIONS for line in section.splitlines() if line.startswith("|")]
    statuses = [row.strip("| ").rsplit(" | ", 1)[-1] for row in rows if "---" not in row]
    found = {re.split(r"\W", status)[0] for status in statuses if status != "status"}
    assert found == legend

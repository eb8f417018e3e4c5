"""Test that the comparison with the sources states every setting of their configurations."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text().split("## Settings")[1].split("## ")[0]
HEADER, _, *ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if "|" in line]


def settings(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the numbers and lists of numbers by dotted name."""
    for key, value in config.items():
        if isinstance(value, dict) and not {"class_path", "init_args"} & set(value) and key != "env_kwargs":
            yield from settings(value, f"{prefix}{key}.")
        elif isinstance(value, int | float | list) and not isinstance(value, bool) and "class_path" not in str(value):
            yield f"{prefix}{key}", value


@pytest.mark.parametrize("source", HEADER[1:])
def test_page_states_every_setting_of_a_source(source: str) -> None:
    column = HEADER.index(source)
    said = {row[0].strip("`"): yaml.safe_load(row[column]) for row in ROWS if row[column]}
    config = yaml.safe_load((ROOT / "configs" / "original" / f"{source}.yaml").read_text())
    assert {**said, **dict(settings(config))} == said
    assert set(said) - {"collector.collect"} <= dict(settings(config)).keys()


def test_every_source_has_a_column() -> None:
    assert sorted(HEADER[1:]) == sorted(path.stem for path in (ROOT / "configs" / "original").glob("*.yaml"))

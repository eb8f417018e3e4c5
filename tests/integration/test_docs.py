"""Test that the documentation states every setting, every column of a run and the pinned versions."""

import gzip
import inspect
import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_extensions"))

from constructors import Setting, descriptions, find, settings_of  # noqa: E402

import td3_lightning  # noqa: E402
from td3_lightning import Linear  # noqa: E402

CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
DIRECTIVES = re.findall(r"^```\{settings\} (\S+)\n(?::skip: (.*)\n)?```$", CONFIGURATION, re.MULTILINE)
METRICS = set(re.findall(r"`([\w/]+)`", (ROOT / "docs" / "algorithm.md").read_text()))
TASKS = ("car", "car_any", "lander", "pendulum")  # others log what MuJoCo reports, too


class Documented:
    """Have three arguments.

    Args:
        one: The first,
            in two lines.
        two: The second: with a colon.
        three: The third.

    Raises:
        ValueError: Never.
    """

    def __init__(self, one: int, two: bool = True, three: list[int] | None = None) -> None: ...


class Undocumented:
    """Have one argument and no description."""

    def __init__(self, one: int) -> None: ...


def test_the_citation_names_the_current_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (td3_lightning.__version__, "MIT")


def test_a_setting_has_name_type_default_and_description() -> None:
    assert list(settings_of(Documented, skip=("two",))) == [
        Setting("one", "int", "required", "The first, in two lines."),
        Setting("three", "list[int] | None", "null", "The third."),
    ]


def test_a_setting_without_description_is_an_error() -> None:
    with pytest.raises(LookupError, match="Undocumented must describe one"):
        list(settings_of(Undocumented))
    assert descriptions(inspect.getdoc(Documented) or "")["two"] == "The second: with a colon."


@pytest.mark.parametrize(("path", "skip"), DIRECTIVES)
def test_every_setting_of_the_reference_is_described(path: str, skip: str) -> None:
    settings = list(settings_of(find(path), tuple(skip.split())))
    assert settings
    assert all(each.description.endswith(".") for each in settings)


def test_the_reference_covers_what_a_configuration_sets() -> None:
    names = {path.rpartition(".")[2] for path, _ in DIRECTIVES}
    assert names >= {"TD3", "ReplayData", "Collector", "BestCheckpoint", Linear.__name__}


@pytest.mark.parametrize("task", TASKS)
def test_every_logged_metric_is_explained(task: str) -> None:
    paths = list((ROOT / "lightning_logs" / "reference" / task).rglob("*.csv.gz"))
    assert paths
    for path in paths:
        with gzip.open(path, "rt") as file:
            assert set(file.readline().strip().split(",")) <= METRICS


def test_page_states_the_pinned_versions_of_robotics() -> None:
    page = (ROOT / "docs" / "guides" / "observations.md").read_text()
    pins = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints-robotics.txt").read_text(), re.MULTILINE))
    for package in ("mujoco", "dm-control", "shimmy", "gymnasium-robotics"):
        assert f"{package} {pins[package]}" in page

"""Run every command and example of the README and the documentation, with short epochs."""

import gzip
import importlib
import re
import shlex
import subprocess
import sys
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from jsonargparse import get_loader

import fit_stub
from td3_lightning import __main__ as entry_point
from td3_lightning.cli.app import main
from td3_lightning.cli.commands import COMMANDS, OTHER_COMMANDS
from td3_lightning.tuning import node
from td3_lightning.tuning.space import Space

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_extensions"))

from constructors import find, settings_of  # noqa: E402

COMMAND = "td3-lightning"
PAGES = {path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
SHORT = ["--data.env_kwargs.max_episode_steps", "30"]
SMALL = shlex.split(
    "--trainer.max_epochs 1 --data.steps_per_epoch 4 --data.batch_size 8 --collector.warmup_steps 20 "
    "--data.eval_episodes 1 --trainer.enable_progress_bar false"
)
SMALL_COMMANDS = {
    "fit": [*SMALL, *SHORT],
    "test": ["--data.test_episodes", "2", *SHORT],
    "validate": ["--data.eval_episodes", "2", *SHORT],
    "robustness": ["--episodes", "1", "--observation_noise", "[0,0.01]", "--action_noise", "[0,0]"],
    "record": ["--episodes", "1", "--env_kwargs.max_episode_steps", "20"],
    **{command: ["--episodes", "1"] for command in ("collect", "plot")},
}
SMALL_PYTHON = [
    (r"max_epochs=\d+", "max_epochs=1"),
    (r"steps_per_epoch=\d+", "steps_per_epoch=4"),
    (r"warmup_steps=\d+", "warmup_steps=10"),
    (r"(eval|test)_episodes=\d+", r"\1_episodes=1"),
]
STAGES = {"walker_fine.yaml"}
EXTRAS = {  # packages that may be missing, and the configurations that require them
    "pybullet_envs_gymnasium": {"walker.yaml", "walker_fine.yaml", "original/walker.yaml"},
    "gymnasium_robotics": {"fetch_reach.yaml", "fetch_push.yaml"},
    "target_gym": {"environments/altitude.yaml", "environments/cstr.yaml"},
}
DIRECTIVES = re.findall(
    r"^```\{settings\} (\S+)\n(?::skip: (.*)\n)?```$", PAGES[ROOT / "docs" / "configuration.md"], re.MULTILINE
)
METRICS = set(re.findall(r"`([\w/]+)`", (ROOT / "docs" / "algorithm.md").read_text()))
TASKS = ("car", "car_any", "lander", "pendulum")  # others log what MuJoCo reports, too
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in a language."""
    return [block for name, block in FENCE.findall(PAGES[page]) if name == language]


def commands(page: Path) -> list[list[str]]:
    """Return the words of the command lines of a page, without comments and the number of threads."""
    lines = [re.split(r"(?:^|\s)#", line)[0].strip() for block in blocks(page, "bash") for line in block.splitlines()]
    plain = [
        line.removeprefix("OMP_NUM_THREADS=1 ").replace("python -m td3_lightning ", f"{COMMAND} ") for line in lines
    ]
    return [shlex.split(line) for line in plain if line]


def trained_configs() -> set[str]:
    """Return the configurations that the commands of all pages train."""
    fits = [each for page in PAGES for each in commands(page) if each[:2] == [COMMAND, "fit"] and "--config" in each]
    return {each[each.index("--config") + 1] for each in fits if not any("--print_config" in word for word in each)}


def with_blocks(language: str) -> list[Any]:
    return [pytest.param(page, id=name_of(page)) for page in PAGES if blocks(page, language)]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder that has the published runs."""
    monkeypatch.chdir(tmp_path)
    Path("lightning_logs").mkdir()
    Path("lightning_logs", "reference").symlink_to(ROOT / "lightning_logs" / "reference")
    return tmp_path


# Commands.


@pytest.mark.parametrize("page", with_blocks("bash"))
def test_every_command_runs(page: Path, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = commands(page)
    missing = {name for package, names in EXTRAS.items() if find_spec(package) is None for name in names}
    for words in lines:
        if not missing & set(words):
            run_line(words, capsys)
    if any("mine.yaml" in words for words in lines):
        assert yaml.safe_load(Path("mine.yaml").read_text())["data"]["env_id"] == "Pendulum-v1"
    if any("videos" in words for words in lines):
        assert list(Path("videos").glob("*.mp4"))


def test_every_subcommand_is_documented() -> None:
    found = {words[1] for page in PAGES for words in commands(page) if words[0] == COMMAND}
    assert found >= {*COMMANDS, *OTHER_COMMANDS}


def run_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command, or check what would change this machine."""
    if words[0] == COMMAND:
        if "walker_fine.yaml" in words and not Path("lightning_logs", "walker").exists():
            run(["fit", "--config", "walker.yaml"], capsys)  # the stage before
        run(words[1:], capsys)
    elif words[:2] == ["python", "-m"] and words[2].startswith("benchmarks."):
        run_benchmark(words[2], words[3:])
    else:
        check_setup(words)


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run td3_lightning, and write its output where the command says."""
    if ">" in words:
        words, target = words[: words.index(">")], Path(words[-1])
        capsys.readouterr()  # drop earlier output
        run(words, capsys)
        target.write_text(capsys.readouterr().out)
        return
    if words[0] == "--version":  # `main` does not know it
        assert entry_point.run(words) == 0
        return
    small = SMALL_COMMANDS.get(words[0], [])
    if words[0] == "sweep":
        amount = {"--space": ["--trials", "1"], "--seeds": ["--seeds", "0"]}
        flags = [word for word in SMALL if word not in ("--data.batch_size", "8")]  # the space has the batch size
        small = [*flags, *(word for kind, short in amount.items() if kind in words for word in short)]
    if words[0] == "fit" and (STAGES & set(words) or "--data.empty_replay" in words):
        small = [*small, "--trainer.max_epochs", "2"]  # the first epoch belongs to the stage before
    if "--trainer.devices" in words:  # test_nodes.py trains in several processes
        small = [*small, "--trainer.devices", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "PROGRAM", [fit_stub.__file__])  # the runs of sweeps; test_sweep.py trains
        try:
            assert main([*words, *([] if "--help" in words else small)]) == 0
        except SystemExit as ended:  # --help and --print_config end this way
            assert not ended.code  # noqa: PT017


def run_benchmark(name: str, words: list[str]) -> None:
    """Run a benchmark for a moment; those that take minutes only read their arguments."""
    small = {
        "benchmarks.priorities": ["--rows", "300", "--batch", "8", "--calls", "3"],
        "benchmarks.hindsight": ["--rows", "300", "--batch", "8", "--calls", "3"],
    }
    if name in small:
        line = [sys.executable, "-m", name, *words, *small[name]]  # it changes its process: cores and threads
        subprocess.run(line, cwd=ROOT, check=True)
    elif name in ("benchmarks.robust_laps", "benchmarks.laps"):
        paths = [path for word in words for path in sorted(glob(word)) or [word]]  # as a shell expands them
        assert importlib.import_module(name).main(paths) == 0
    elif name == "benchmarks.environments":  # it installs packages
        assert importlib.import_module(name).parse(words).names or "--table" in words
    elif name == "benchmarks.car_frames":
        assert importlib.import_module(name).main([*words, "--windows", "1", "--seconds", "0.1"]) == 0
    else:
        assert name.removeprefix("benchmarks.") in {"latency", "score_per_hour", "speed", "update"}
        here = [sys.executable if word.endswith("/python") else word for word in words]
        importlib.import_module(name).parse(here)


def _require_fast(text: str) -> None:
    """Skip the rest of a page in a copy without the optional package, if a block or a benchmark imports it."""
    if "td3_lightning.fast" in text:
        pytest.importorskip("td3_lightning.fast")


def check_setup(words: list[str]) -> None:
    """Check the targets and extras in a command that installs, builds or opens a browser."""
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), words
    for extra in re.findall(r"\[(\w+)\]", words[-1]):
        assert f"\n{extra} = " in (ROOT / "pyproject.toml").read_text(), words


# Examples.


@pytest.mark.parametrize("page", with_blocks("yaml"))
def test_every_yaml_block_is_a_valid_configuration(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "yaml")):
        if page.stem == "sweeps":
            Space(get_loader("yaml")(block))
            continue
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        with pytest.raises(SystemExit) as ended:
            main(["fit", "--config", str(path), "--data.env_id", "Pendulum-v1", "--print_config"])
        assert not ended.value.code, block


@pytest.mark.parametrize("page", with_blocks("python"))
def test_every_python_block_runs(page: Path, scratch: Path) -> None:
    """Run the blocks of a page in order and in one namespace, as a reader does."""
    names: dict[str, Any] = {"__name__": f"example_{page.stem}"}
    for block in blocks(page, "python"):
        for long, short in SMALL_PYTHON:
            block = re.sub(long, short, block)
        _require_fast(block)
        exec(compile(block, name_of(page), "exec"), names)
    if page.stem in ("README", "quickstart"):
        assert names["agent"].env_steps == 14
        assert np.isfinite(names["result"]["test/return_mean"])


# References.


def prose(page: Path) -> str:
    return FENCE.sub("", PAGES[page])


def test_readme_is_short_and_its_results_are_on_the_linked_pages() -> None:
    readme = PAGES[ROOT / "README.md"]
    assert len(readme.split()) <= 900
    table = readme.split("## Results")[1].split("## Features")[0]
    numbers = re.findall(r"\[(-?[\d.,]+%?)\]\(([^)#]+)#", table)
    assert len(numbers) >= 20
    for number, page in numbers:
        assert re.search(rf"(?<![\d,.-]){re.escape(number)}(?![\d])", PAGES[ROOT / page]), (number, page)


def test_every_linked_file_exists() -> None:
    for page in PAGES:
        for path in re.findall(r"\]\(((?!https?:)[^)#]+)", prose(page)):
            assert (page.parent / path).exists(), (name_of(page), path)
        for name in re.findall(r"`((?:original/)?\w+\.yaml)`", prose(page)):
            assert (ROOT / "configs" / name).is_file() or name in ("mine.yaml", "config.yaml"), (name_of(page), name)


def test_every_linked_section_exists() -> None:
    for page in PAGES:
        for path, section in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", prose(page)):
            target = page.parent / path if path else page
            headings = re.findall(r"^#+ (.*)$", FENCE.sub("", target.read_text()), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert section in anchors, (name_of(page), section)


def test_configurations_have_results_and_pages_are_linked() -> None:
    results = PAGES[ROOT / "docs" / "results" / "index.md"]
    for config in (ROOT / "configs").glob("*.yaml"):
        assert f"`{config.name}`" in results, config.name
    listed = PAGES[ROOT / "docs" / "index.md"] + results
    for page in (ROOT / "docs").rglob("*.md"):
        assert re.search(rf"^(\w+/)*{page.stem}$", listed, re.MULTILINE), name_of(page)


def test_architecture_names_every_package_and_files_that_exist() -> None:
    page = PAGES[ROOT / "docs" / "architecture.md"]
    package = ROOT / "td3_lightning"
    for path in package.glob("*/__init__.py"):
        assert f"`{path.parent.name}/`" in page, path.parent.name
    ways = [section.split("## ")[0] for section in re.split(r"## The way of an? \w+", page)[1:]]
    files = [re.findall(r"^\| `([\w/]+\.py)` \|", way, re.MULTILINE) for way in ways]
    assert [len(each) <= most for each, most in zip(files, (8, 6), strict=True)] == [True, True]
    for name in re.findall(r"`(\w+/\w+\.py)`", page) + [
        f"algorithm/{each}" for each in re.findall(r"`(\w+\.py)`", page)
    ]:
        assert (package / name).exists(), name


# Settings, metrics and versions.


@pytest.mark.parametrize(("path", "skip"), DIRECTIVES)
def test_every_setting_of_the_reference_is_described(path: str, skip: str) -> None:
    settings = list(settings_of(find(path), tuple(skip.split())))
    assert settings
    assert all(each.description.endswith(".") for each in settings)


@pytest.mark.parametrize("task", TASKS)
def test_every_logged_metric_is_explained(task: str) -> None:
    paths = list((ROOT / "lightning_logs" / "reference" / task).rglob("*.csv.gz"))
    assert paths
    for path in paths:
        with gzip.open(path, "rt") as file:
            assert set(file.readline().strip().split(",")) <= METRICS

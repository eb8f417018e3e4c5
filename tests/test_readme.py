"""Every command and every example of the README and of the results runs, made small."""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import lightning as L
import pytest
import yaml

from td3_lightning.cli import main
from td3_lightning.collector import Collector
from td3_lightning.data import ReplayData

ROOT = Path(__file__).parent.parent
NAMES = ("README.md", "docs/guide.md", "docs/results.md", "docs/experiment_log.md")
PAGES = {ROOT / name: (ROOT / name).read_text() for name in NAMES}
SMALL = shlex.split(
    "--trainer.max_epochs 1 --data.steps_per_epoch 4 --data.batch_size 8 --collector.warmup_steps 20 "
    "--data.eval_episodes 1 --trainer.enable_progress_bar false"
)
STAGES = {"car_fine.yaml", "walker_fine.yaml"}


def blocks(language: str) -> list[str]:
    """The pages' code blocks in a language, "" for commands."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", "".join(PAGES.values()), re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def commands() -> list[list[str]]:
    lines = [line.split("#")[0].strip() for block in blocks("") for line in block.splitlines()]
    found = [line.removeprefix("OMP_NUM_THREADS=1 ") for line in lines]
    return [shlex.split(line) for line in found if line.startswith("python -m td3_lightning")]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Runs a command of the pages, and puts its output where it says."""
    if ">" in words:
        words, target = words[: words.index(">")], Path(words[-1])
        capsys.readouterr()  # what came before
        run(words, capsys)
        target.write_text(capsys.readouterr().out)
        return
    small = {"fit": SMALL, "record": ["--episodes", "1"], "test": ["--data.test_episodes", "2"]}.get(words[0], [])
    if words[0] == "fit" and STAGES & set(words):
        small = [*small, "--trainer.max_epochs", "2"]  # one of them before this stage
    if "--trainer.devices" in words:  # Lightning starts the other processes with this one's own command
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-m", "td3_lightning", *words, *small], env=environment, check=True)
        return
    try:
        assert main([*words, *([] if "--help" in words else small)]) == 0
    except SystemExit as ended:  # --help and --print_config end this way
        assert not ended.code  # noqa: PT017


def test_every_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lightning_logs").mkdir()
    Path("lightning_logs", "reference").symlink_to(ROOT / "lightning_logs" / "reference")
    found = commands()
    assert {words[3] for words in found} == {"fit", "validate", "test", "record", "export", "import"}
    for words in found:
        in_bullet = {"walker.yaml", "walker_fine.yaml", "original/walker.yaml"} & set(words)
        if not in_bullet or find_spec("pybullet_envs_gymnasium") is not None:
            run(words[3:], capsys)
    assert yaml.safe_load(Path("mine.yaml").read_text())["data"]["env_id"] == "td3_lightning/CarRacing-v0"
    assert len(list(Path("videos").glob("*.mp4"))) >= 1


def test_every_configuration_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert blocks("yaml")
    for number, block in enumerate(blocks("yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        with pytest.raises(SystemExit) as ended:
            main(["fit", "--config", str(path), "--data.env_id", "Pendulum-v1", "--print_config"])
        assert not ended.value.code


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks("python")
    assert len([line for line in example.splitlines() if line and "import" not in line]) <= 10
    monkeypatch.chdir(tmp_path)
    small = {"max_epochs=10": "max_epochs=1", "steps_per_epoch=1000": "steps_per_epoch=4", "=1000": "=10"}
    for long, short in small.items():
        assert long in example
        example = example.replace(long, short)
    names: dict[str, object] = {}
    exec(example, names)
    assert isinstance(names["data"], ReplayData)
    assert isinstance(names["trainer"], L.Trainer)
    assert any(isinstance(callback, Collector) for callback in names["trainer"].callbacks)  # type: ignore[attr-defined]
    assert names["policy"].env_steps == 14  # type: ignore[attr-defined]


def test_every_named_file_is_there() -> None:
    for page, text in PAGES.items():
        for path in re.findall(r"\]\(((?!https?:)[^)#]+)", text):
            assert (page.parent / path).exists(), path
        for name in re.findall(r"^\| `(\S+\.yaml)` \|", text, re.MULTILINE):
            assert (ROOT / "configs" / name).is_file(), name


def test_every_named_section_is_there() -> None:
    for named_in, text in PAGES.items():
        for page, section in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text):
            named = named_in.parent / page if page else named_in
            headings = re.findall(r"^#+ (.*)$", named.read_text(), re.MULTILINE)
            assert section in [heading.lower().replace(" ", "-") for heading in headings], section


def test_every_module_has_its_place() -> None:
    map_ = PAGES[ROOT / "README.md"].split("## How it works")[1].split("##")[0]
    modules = [path.name for path in (ROOT / "td3_lightning").glob("*.py") if not path.name.startswith("__")]
    assert sorted(re.findall(r"`(\w+\.py)`", map_)) == sorted(modules)


def test_every_named_test_is_there() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "checkpoints.md").read_text())
    assert len(named) >= 18
    assert [name for name in named if f"def {name}(" not in tests] == []

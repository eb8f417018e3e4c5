"""The structure of the package and its tests: imports, sizes of files and functions, and removable packages."""

import ast
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import td3_lightning

PACKAGE = Path(td3_lightning.__file__).parent

FOUNDATION = {"errors", "seeding", "schedules", "serialization", "atomic_files"}
TRAINING = {*FOUNDATION, "envs", "replay", "algorithm", "training"}
ALLOWED = {  # what a package may import besides itself
    **dict.fromkeys(FOUNDATION, FOUNDATION),
    "envs": FOUNDATION,
    "replay": FOUNDATION,
    "algorithm": {*FOUNDATION, "replay"},
    "training": TRAINING,
    "fast": TRAINING,
    "reporting": TRAINING,
    "checkpointing": {*TRAINING, "reporting"},
    "interop": {*TRAINING, "reporting", "checkpointing"},
    "tuning": {*TRAINING, "fast", "reporting", "checkpointing", "interop", "__init__"},
    "cli": {*TRAINING, "fast", "reporting", "checkpointing", "interop", "tuning", "__init__"},
    "__main__": {*TRAINING, "fast", "reporting", "checkpointing", "interop", "tuning", "cli", "__init__"},
    "__init__": {*TRAINING, "fast", "reporting", "checkpointing", "interop", "tuning"},
}
IMPORTERS_OF_FAST = {"__init__", "cli"}
PRIVATE_LIGHTNING_ALLOWED = ("fast/", "checkpointing/", "reporting/logger.py")

LIGHTNING_OBJECT = re.compile(r"(trainer|loop|logger|fetcher|strategy|connector|pl_module)$")
LIGHTNING_NAMES = {"_trainer", "_average_model"}  # of a LightningModule and of WeightAveraging, on any object

MAX_FILE_LINES = 300
MAX_BODY_LINES = 30

TRAIN = """
import lightning as L
from td3_lightning import TD3, Collector, ReplayData

data = ReplayData("Pendulum-v1", batch_size=8, steps_per_epoch=20, eval_episodes=1)
module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=[8])
before = module.actor.state_dict()["layers.0.weight"].clone()
unused = dict.fromkeys(["enable_checkpointing", "enable_progress_bar", "logger"], False)
trainer = L.Trainer(max_epochs=1, accelerator="cpu", callbacks=[Collector(warmup_steps=10)], **unused)
trainer.fit(module, datamodule=data)
assert module.updates == 20 and "eval/return_mean" in trainer.callback_metrics, trainer.callback_metrics
assert not module.actor.state_dict()["layers.0.weight"].equal(before)
"""


def package_of(path: Path, package: Path = PACKAGE) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def imported_modules(tree: ast.AST, path: Path, package: Path = PACKAGE) -> Iterator[str]:
    """Yield the name of each module that a file imports, also relatively, in functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = [package.name, *path.relative_to(package).parts[:-1]]
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_packages(tree: ast.AST, path: Path, package: Path = PACKAGE) -> set[str]:
    """Return the packages of td3_lightning that a file imports. A name of td3_lightning itself counts as `__init__`."""
    found = set()
    for name in imported_modules(tree, path, package):
        root, _, rest = name.partition(".")
        if root == package.name:
            first = rest.split(".")[0]
            is_module = (package / first).is_dir() or (package / f"{first}.py").is_file()
            found.add(first if first and is_module else "__init__")
    return found - {package_of(path, package)}


def import_graph() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for path, tree in trees().items():
        graph.setdefault(package_of(path), set()).update(imported_packages(tree, path))
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    pending = [start]
    while pending:
        new = graph.get(pending.pop(), set()) - found
        found |= new
        pending += new
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.AST) -> set[str]:
    """Find Lightning's underscore names: imported, or read from a trainer, loop, logger, fetcher or strategy."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            prefix = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules = [".".join([*prefix, alias.name]) for alias in node.names]
            found.update(part for module in modules if module.startswith("lightning.") for part in module.split("."))
        elif isinstance(node, ast.Attribute) and (
            node.attr in LIGHTNING_NAMES or LIGHTNING_OBJECT.search(ast.unparse(node.value))
        ):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def long_functions(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body and (body[-1].end_lineno or 0) - body[0].lineno + 1 > MAX_BODY_LINES:
                found.add(node.name)
    return found


def in_package(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_imports_follow_the_table() -> None:
    assert not {
        f"{in_package(path)} imports {imported}"
        for path, tree in trees().items()
        for imported in imported_packages(tree, path) - ALLOWED.get(package_of(path), set())
    }


def test_algorithm_imports_only_batch_from_replay() -> None:
    files = {path: tree for path, tree in trees().items() if package_of(path) == "algorithm"}
    modules = {name for path, tree in files.items() for name in imported_modules(tree, path)}
    assert {name for name in modules if ".replay." in name} == {"td3_lightning.replay.batch.Batch"}


def test_every_package_is_in_the_table() -> None:
    assert {package_of(path) for path in trees()} <= ALLOWED.keys()


def test_packages_import_each_other_without_cycles() -> None:
    graph = import_graph()
    assert not [package for package in graph if package in reachable(graph, package)]


def test_only_init_and_cli_import_fast() -> None:
    importers = {package for package, imported in import_graph().items() if "fast" in imported}
    assert importers <= IMPORTERS_OF_FAST


def test_only_main_imports_cli() -> None:
    assert {package for package, imported in import_graph().items() if "cli" in imported} <= {"__main__"}


def test_lightning_private_names_stay_in_their_packages() -> None:
    assert not {
        f"{in_package(path)} uses {name}"
        for path, tree in trees().items()
        if not in_package(path).startswith(PRIVATE_LIGHTNING_ALLOWED)
        for name in private_names(tree)
    }


def test_few_private_methods_of_lightning_are_replaced() -> None:
    replaced = {
        f"{module.name.removeprefix('td3_lightning.')}: {name}"
        for module in pkgutil.walk_packages([str(PACKAGE)], "td3_lightning.")
        if not module.name.endswith("__main__")
        for kind in vars(importlib.import_module(module.name)).values()
        if isinstance(kind, type) and kind.__module__ == module.name
        for base in kind.__mro__
        if base.__module__.startswith("lightning.")
        for name in vars(kind).keys() & vars(base).keys()
        if is_private(name) and name != "_abc_impl"
    }
    allowed = {one for one in replaced if one.startswith(("fast.", "checkpointing.", "reporting.logger:"))}
    assert replaced - allowed == {
        "cli.command_line: _parse_ckpt_path",  # it would merge settings that were not checked
        "cli.command_line: _prepare_subcommand_kwargs",
    }


def test_files_are_short() -> None:
    lengths = {in_package(path): len(path.read_text(encoding="utf-8").splitlines()) for path in trees()}
    assert not {name for name, lines in lengths.items() if lines > MAX_FILE_LINES}


def test_every_package_has_a_folder_of_tests() -> None:
    packages = {path.parent.name for path in trees() if path.parent != PACKAGE}
    assert packages <= {path.name for path in PACKAGE.parent.joinpath("tests").iterdir() if path.is_dir()}


def test_functions_are_short() -> None:
    assert not {f"{in_package(path)} {name}" for path, tree in trees().items() for name in long_functions(tree)}


@pytest.mark.parametrize(
    ("source", "packages"),
    [
        ("import td3_lightning.cli.app", {"cli"}),
        ("from td3_lightning.cli import app", {"cli"}),
        ("from td3_lightning import TD3", {"__init__"}),
        ("from ..cli import app", {"cli"}),
        ("from . import ring", set()),
        ("def f():\n    from td3_lightning.checkpointing import io", {"checkpointing"}),
        ("if TYPE_CHECKING:\n    from td3_lightning.training import collector", {"training"}),
    ],
)
def test_every_form_of_import_is_found(source: str, packages: set[str]) -> None:
    assert imported_packages(ast.parse(source), PACKAGE / "replay" / "buffer.py") == packages


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from lightning.pytorch.loops import _Loop", {"_Loop"}),
        ("from lightning.pytorch._graveyard import x", {"_graveyard"}),
        ("trainer._callback_connector", {"_callback_connector"}),
        ("module._trainer", {"_trainer"}),
        ("self._average_model.update_parameters(module)", {"_average_model"}),
        ("self._logger", set()),
        ("from torch import _C", set()),
    ],
)
def test_every_private_lightning_name_is_found(source: str, names: set[str]) -> None:
    assert private_names(ast.parse(source)) == names


def test_agent_trains_without_optional_packages(tmp_path: Path) -> None:
    removed = ["fast", "checkpointing", "interop", "reporting", "cli", "__main__.py"]
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__", *removed))
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.run([sys.executable, "-c", TRAIN], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_suite_outside_of_tests_fast_does_not_import_fast() -> None:
    """`make test-without-fast` runs this suite without the package. `pytest.importorskip` is allowed."""
    root = PACKAGE.parent

    def imported(path: Path) -> set[str]:
        return set(imported_modules(ast.parse(path.read_text(encoding="utf-8")), path, root))

    programs = [path.relative_to(root).with_suffix("") for path in root.glob("benchmarks/**/*.py")]
    of_fast = {".".join(path.parts) for path in programs if any(map(is_fast, imported(root / f"{path}.py")))}
    assert "benchmarks.baselines.without" in of_fast
    for path in root.glob("tests/**/*.py"):
        if path.parent != root / "tests" / "fast":
            assert not [name for name in imported(path) if is_fast(name) or name.startswith((*of_fast,))], path


def is_fast(module: str) -> bool:
    return module.startswith("td3_lightning.fast")


SUITE = [  # a short part of `make test-without-fast`: what fast replaces is the update, the optimizer step and the loop
    "tests/training/test_divergence.py",
    "tests/interop/test_original_weights.py::test_training_continues_from_imported_weights",  # on the command line
]


@pytest.mark.timeout(900)  # 25 s on a free core
def test_suite_passes_without_fast(tmp_path: Path) -> None:
    for name in (PACKAGE.name, "tests", "configs"):
        shutil.copytree(PACKAGE.parent / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "fast"))
    shutil.copy(PACKAGE.parent / "pyproject.toml", tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *SUITE]
    process = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr

"""Test the entry point of the command."""

import os
import subprocess
import sys

import pytest

OPTIONAL = ["minari", "onnx", "onnxruntime", "optuna", "pandas", "ray", "tensorflow", "imageio_ffmpeg"]
IMPORT = """
import gc
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
from td3_lightning.__main__ import import_main
collections.clear()
main = import_main()
print(len(collections), gc.isenabled(), gc.get_freeze_count() > 100_000, main.__module__)
"""
INTERRUPT = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "lightning":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from td3_lightning.__main__ import run
run(["fit"])
"""


def test_imports_run_without_garbage_collection() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True", "True", "td3_lightning.cli.app"]


def test_ctrl_c_during_imports_exits_with_130_and_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    "module",
    [
        "cli.curves",
        "cli.sweep",
        "interop",
        "reporting.seed_curves",
        "tuning.study",
    ],
)
def test_fit_does_not_import_other_commands(module: str, imported: list[str]) -> None:
    assert f"td3_lightning.{module}" not in imported


@pytest.mark.parametrize("package", OPTIONAL)
def test_fit_does_not_import_optional_packages(package: str, imported: list[str]) -> None:
    assert package not in imported


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the modules that the command imports before it reads its words. Each optional package can be imported."""
    folder = tmp_path_factory.mktemp("packages")
    for package in OPTIONAL:
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    program = "import sys; from td3_lightning.__main__ import import_main; import_main(); print(*sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()

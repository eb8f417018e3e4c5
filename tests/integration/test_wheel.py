"""Check that a wheel contains the package and its configurations, and that it trains outside of the repository."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodes import LIMIT

ROOT = Path(__file__).parents[2]
SMALL = [
    *("--trainer.max_epochs=1", "--data.steps_per_epoch=8", "--data.batch_size=4", "--data.eval_episodes=1"),
    *("--collector.warmup_steps=10", "--trainer.enable_progress_bar=false"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and install it into an empty folder."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]  # downloads nothing
    subprocess.run([*pip, *build], check=True, timeout=200)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True, timeout=200)
    return folder / "site"


def run(site: Path, *words: str) -> str:
    """Run the interpreter in an empty folder with the installed wheel, and return what it prints."""
    folder = site.parent / "work"
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_has_every_configuration_and_trains(site: Path) -> None:
    path, version = run(site, "-c", "import td3_lightning as t; print(t.__file__, t.__version__)").split()
    assert Path(path).is_relative_to(site)
    assert list(site.glob(f"td3_lightning-{version}.dist-info"))
    said = run(site, "-m", "td3_lightning", "fit", "--config", "pendulum.yaml", *SMALL)
    assert "Pendulum-v1" in said
    assert (site.parent / "work" / "lightning_logs" / "pendulum" / "version_0" / "checkpoints" / "last.ckpt").exists()
    installed = {path.relative_to(site / "td3_lightning" / "configs") for path in site.rglob("configs/**/*.yaml")}
    assert installed == {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")}

"""The environments are registered whether Gymnasium is imported before or after the package."""

import subprocess
import sys

import pytest

FOUND = "assert gymnasium.spec('td3_lightning/CarRacing-v0').max_episode_steps == 1000\n"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["import gymnasium", "import td3_lightning"], id="before"),
        pytest.param(
            [
                "import td3_lightning, sys",
                "assert 'gymnasium' not in sys.modules",
                "finders = len(sys.meta_path)",
                "import gymnasium.spaces",
                "assert len(sys.meta_path) == finders - 1",
                "import gymnasium",
            ],
            id="after",
        ),
        pytest.param(
            [
                "import td3_lightning",
                "from importlib.util import find_spec",
                "find_spec('gymnasium')",
                "import gymnasium",
            ],
            id="after a search",
        ),
    ],
)
def test_car_is_registered_for_any_order_of_imports(lines: list[str]) -> None:
    subprocess.run([sys.executable, "-c", "\n".join([*lines, FOUND])], check=True)


def test_package_is_imported_without_gymnasium() -> None:
    lines = ["import sys", "sys.modules['gymnasium'] = None", "import td3_lightning", "td3_lightning.Constant(1.0)"]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)

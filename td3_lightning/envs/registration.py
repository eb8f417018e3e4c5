"""Registration of the environments with Gymnasium, without importing it: an exported policy does not need it."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

GYMNASIUM = "gymnasium"


def register_environments() -> None:
    """Register the environments now if Gymnasium has been imported, otherwise when it is imported."""
    imported = sys.modules.get(GYMNASIUM)
    if imported is not None:
        _register(imported)
    else:
        sys.meta_path.insert(0, _GymnasiumFinder())


def _register(gymnasium: ModuleType) -> None:
    gymnasium.register(
        id="td3_lightning/CarRacing-v0",
        entry_point="td3_lightning.envs.car_racing:CarRacing",
        max_episode_steps=1000,
        reward_threshold=900,
    )


class _GymnasiumFinder(MetaPathFinder):
    """Find Gymnasium as the other finders do, and register the environments after its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of Gymnasium, and None for any other module."""
        if fullname != GYMNASIUM:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(GYMNASIUM)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            sys.meta_path.remove(self)
            _register(module)

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec

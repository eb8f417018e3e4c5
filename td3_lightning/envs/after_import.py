"""Calls after the import of a module that this process may never need."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, call: Callable[[ModuleType], None]) -> None:
    """Call a function with a module: now if it has been imported, otherwise when it is imported.

    Args:
        name: Name of the module, without a package.
        call: The function.
    """
    imported = sys.modules.get(name)
    if imported is not None:
        call(imported)
    else:
        sys.meta_path.insert(0, _Finder(name, call))


class _Finder(MetaPathFinder):
    """Find a module as the other finders do, and call a function after its import."""

    def __init__(self, name: str, call: Callable[[ModuleType], None]) -> None:
        self._name, self._call = name, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module, and None for any other module."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            sys.meta_path.remove(self)
            self._call(module)

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec

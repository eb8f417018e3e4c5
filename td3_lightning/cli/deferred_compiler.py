"""Postpone the import of `torch._dynamo`, the package of torch.compile, until it is used.

Lightning 2.6 and the optimizers of PyTorch 2.13 import it for three names. The import takes 1.5 s of CPU time, a third
of the time from the start of the command to the first update.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import torch

NAME = "torch._dynamo"


def defer_compiler() -> None:
    """Install a module with the three names under the name of the package, unless the package is imported already."""
    spec = importlib.util.find_spec(NAME)
    if NAME not in sys.modules and spec is not None and spec.loader is not None:
        sys.modules[NAME] = torch._dynamo = DeferredCompiler(spec, spec.loader)
        sys.meta_path.insert(0, SubmoduleFinder())


class DeferredCompiler(ModuleType):
    """Stand for `torch._dynamo`, and become it when a name is used that this module does not define."""

    def __init__(self, spec: ModuleSpec, loader: Loader) -> None:
        super().__init__(NAME)
        self.__spec__, self.__loader__, self.__file__ = spec, loader, spec.origin
        self.__path__ = spec.submodule_search_locations or []
        self.OptimizedModule = type("OptimizedModule", (), {})  # no module is compiled yet
        self.graph_break = lambda msg="": None  # nothing to break outside of compiled code
        self.disable = self._disable

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # optional names of every module
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        self.load()
        return getattr(self, name)

    def load(self) -> None:
        """Run the code of the package in this module, as the import would have done."""
        loader = self.__loader__
        assert isinstance(loader, Loader)
        del self.OptimizedModule, self.graph_break, self.disable
        self.__class__ = ModuleType  # type: ignore[assignment]
        loader.exec_module(self)

    def _disable(self, fn: Any = None, *args: Any, **options: Any) -> Any:
        """Return a method of an optimizer as it is."""
        if isinstance(fn, FunctionType):
            return fn
        self.load()
        return self.disable(fn, *args, **options)


class SubmoduleFinder(MetaPathFinder):
    """Import the package before its submodules."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Find nothing: the other finders do that."""
        compiler = sys.modules.get(NAME)
        if fullname.startswith(f"{NAME}.") and isinstance(compiler, DeferredCompiler):
            compiler.load()

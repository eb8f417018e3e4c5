"""Postpone the import of `torch._dynamo`, the package of torch.compile, until it is used.

Lightning and the optimizers of PyTorch import it for three names. The import takes a third of the time from the start
of the command to the first update. Written for PyTorch 2.13 and Lightning 2.6: if other versions use more names, the
package is imported when they do.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import torch

NAME = "torch._dynamo"


def defer_compiler() -> None:
    """Install a module with the three names under the name of the package, unless the package is imported already."""
    spec = importlib.util.find_spec(NAME)
    if NAME in sys.modules or spec is None or spec.loader is None:
        return
    sys.modules[NAME] = torch._dynamo = DeferredCompiler(spec, spec.loader)
    sys.meta_path.insert(0, SubmoduleFinder())


class DeferredCompiler(ModuleType):
    """Stands for `torch._dynamo`, and becomes it when a name is used that it does not define.

    Args:
        spec: How Python imports the package.
        loader: Runs the code of the package.
    """

    def __init__(self, spec: ModuleSpec, loader: Loader) -> None:
        super().__init__(NAME)
        self.__spec__, self.__loader__, self.__file__ = spec, loader, spec.origin
        self.__path__ = spec.submodule_search_locations or []
        self.postponed: list[Callable[[], None]] = []
        self.OptimizedModule = OptimizedModule
        self.graph_break = graph_break
        self.disable = self._disable

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # optional names of every module
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        self.load()
        return getattr(self, name)

    def load(self) -> None:
        """Run the code of the package in this module, as the import would have done."""
        loader, postponed = self.__loader__, self.postponed
        assert isinstance(loader, Loader)
        del self.postponed, self.OptimizedModule, self.graph_break, self.disable
        self.__class__ = ModuleType  # type: ignore[assignment]
        loader.exec_module(self)
        for disable in postponed:
            disable()

    def _disable(self, fn: Any = None, *args: Any, **options: Any) -> Any:
        """Decorate a function that must not be compiled, for example a method of an optimizer. `load` passes it on."""
        if not isinstance(fn, FunctionType):
            self.load()
            return self.disable(fn, *args, **options)
        called = fn

        @functools.wraps(fn)
        def call(*call_args: Any, **call_options: Any) -> Any:
            return called(*call_args, **call_options)

        def disable() -> None:
            nonlocal called
            called = self.disable(fn, *args, **options)

        self.postponed.append(disable)
        return call


class SubmoduleFinder(MetaPathFinder):
    """Import the package before its submodules."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Find nothing: the other finders do that."""
        compiler = sys.modules.get(NAME)
        if fullname.startswith(f"{NAME}.") and isinstance(compiler, DeferredCompiler):
            compiler.load()


class CompiledModule(type):
    """Type of `OptimizedModule`, so that `isinstance` recognizes the modules that torch.compile returns."""

    def __instancecheck__(cls, instance: object) -> bool:
        compiler = sys.modules[NAME]
        return not isinstance(compiler, DeferredCompiler) and isinstance(instance, compiler.OptimizedModule)


class OptimizedModule(metaclass=CompiledModule):
    """Stands for the class of the modules that torch.compile returns."""


def graph_break(msg: str = "") -> None:
    """Do nothing, as outside of compiled code."""

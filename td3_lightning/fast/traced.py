"""Function of tensors that runs as one traced graph, without Python between its operations.

The Python call of an operation takes about as long as the operation on a network of the usual size.
"""

import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

CAN_TRACE = sys.version_info < (3, 14)  # torch.jit.trace does not support later versions of Python
MAX_TRACES = 200  # per process: torch keeps about a megabyte of each forever; later functions are called directly

_tracing = threading.Lock()  # filters of warnings are shared by all threads
_traces = 0  # so far


class TracedFunction:
    """Call a function directly the first time, trace it with torch.jit.trace the second time, and then run the trace.

    Args:
        function: Function of tensors, with operations of torch only, that does the same for the same shapes and types.
        tensors: Returns all tensors that it reads or writes besides its arguments; none of them requires gradients.
    """

    def __init__(self, function: Callable[..., Any], tensors: Callable[[], Iterable[Tensor]]) -> None:
        self.function, self.tensors = function, tensors
        self._run: Callable[..., Any] = self._first

    def __call__(self, *inputs: Tensor) -> Any:
        """Return what the function returns: a tensor or several."""
        return self._run(*inputs)

    def _first(self, *inputs: Tensor) -> Any:
        """Call the function. A trace would take longer than a single call."""
        self._run = self._trace if CAN_TRACE and _traces < MAX_TRACES else self.function
        return self.function(*inputs)

    def _trace(self, *inputs: Tensor) -> Any:
        global _traces
        module = _FunctionModule(self.function, self.tensors())
        with _tracing, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated, and shapes are taken as constants
            trace = torch.jit.trace(module, inputs, check_trace=False)  # type: ignore[no-untyped-call]
        if not isinstance(trace, torch.jit.ScriptModule):  # PYTORCH_JIT=0
            self._run = self.function
            return self.function(*inputs)
        _check_constants(trace)
        _traces += 1
        self._run = trace.forward
        return module.result


class _FunctionModule(nn.Module):
    """The function with its tensors as buffers, as torch.jit.trace requires."""

    def __init__(self, function: Callable[..., Any], tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.function, self.result = function, None
        for index, tensor in enumerate({id(tensor): tensor for tensor in tensors}.values()):
            self.register_buffer(f"tensor_{index}", tensor)

    def forward(self, *inputs: Tensor) -> Any:
        self.result = self.function(*inputs)
        return self.result


def _check_constants(trace: torch.jit.ScriptModule) -> None:
    """Raise `RuntimeError` if a tensor was traced as a constant, because `tensors` does not return it."""
    graph: Any = trace.inlined_graph
    for node in graph.findAllNodes("prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t" and node.t("value").dim():
            shape = tuple(node.t("value").shape)
            raise RuntimeError(f"A tensor of shape {shape} is missing in the tensors of a traced function.")

"""Many operations of torch as one, so that Python is not asked for each of them. A reader may skip this file.

Asking takes about as long as an operation on a network of the usual size, and longer where the last matrix product has
left nothing of Python in the cache.
"""

import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

RECORDS = sys.version_info < (3, 14)  # torch.jit.trace may break from there on


MOST = 200  # recordings of a process, as torch keeps a megabyte of each for ever; after them functions are called


_noting = threading.Lock()  # filters of warnings are those of all threads


_recordings = 0  # so far


class TracedFunction:
    """A function of tensors whose operations torch.jit.trace notes in its second call, to run them without it.

    Args:
        function: It does the same whenever the arguments have the same shapes and types, with torch's operations alone.
        memory: Gives all tensors that it reads or writes besides its arguments. None of them wants a gradient.
    """

    def __init__(self, function: Callable[..., Any], memory: Callable[[], Iterable[Tensor]]) -> None:
        self.function, self.memory = function, memory
        self._run: Callable[..., Any] = self._first

    def __call__(self, *tensors: Tensor) -> Any:
        """What the function gives, which is a tensor or several."""
        return self._run(*tensors)

    def _first(self, *tensors: Tensor) -> Any:
        """Calls the function as it is: what is asked for only once is not worth the time that noting takes."""
        self._run = self._record if RECORDS and _recordings < MOST else self.function
        return self.function(*tensors)

    def _record(self, *tensors: Tensor) -> Any:
        global _recordings
        noted = _Noted(self.function, self.memory())
        with _noting, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch.jit will be gone one day, and that shapes are taken as fixed
            recording = torch.jit.trace(noted, tensors, check_trace=False)  # type: ignore[no-untyped-call]
        if not isinstance(recording, torch.jit.ScriptModule):  # PYTORCH_JIT=0
            self._run = self.function
            return self.function(*tensors)
        _check_memory(recording)
        _recordings += 1
        self._run = recording.forward
        return noted.result


class _Noted(nn.Module):
    """The function with its memory, as torch.jit.trace wants them."""

    def __init__(self, function: Callable[..., Any], memory: Iterable[Tensor]) -> None:
        super().__init__()
        self.function, self.result = function, None
        for place, tensor in enumerate({id(tensor): tensor for tensor in memory}.values()):
            self.register_buffer(f"tensor_{place}", tensor)

    def forward(self, *tensors: Tensor) -> Any:
        self.result = self.function(*tensors)
        return self.result


def _check_memory(recording: torch.jit.ScriptModule) -> None:
    """Raises `RuntimeError` for a tensor that is not in the memory, as it was taken for a constant."""
    graph: Any = recording.inlined_graph
    for node in graph.findAllNodes("prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t" and node.t("value").dim():
            raise RuntimeError(f"A tensor of shape {tuple(node.t('value').shape)} is not in a recording's memory.")

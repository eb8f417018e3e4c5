"""The code of `algorithm/` that the fast updates replace, and a check that it is the code they were written for.

An edit of that code, in its file, in a subclass or at run time, turns the fast update off. After an edit of
`algorithm/`, adapt the fast update, then copy the new digests from the failing test in `tests/fast/`.
"""

import ast
import hashlib
import inspect
from functools import cache
from pkgutil import resolve_name
from textwrap import dedent
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

STEPS = {  # methods of an agent that `autograd_update.py` replaces
    "update_critics": "1e249a44720ba9f1",
    "update_actor": "e181fe547e01e4ce",
    "compute_gradients": "54ecfc83fcbb3f99",
    "step_optimizer": "f6a1b9082ffa2a85",
}
LOSSES = {  # further ones that `manual_update.py` replaces
    "critic_loss": "cb397357efd0bc97",
    "td_target": "7870023bfebf4e14",
    "actor_loss": "0d2b3e92ca8be640",
    "_actor_input": "86ac6c6dcf5ac55a",
}
FORWARD = {  # functions that those methods call
    "networks:Actor.forward": "40fa53280e35c9b8",
    "networks:Critics.forward": "1ed676b7c4ebed66",
    "networks:Critics.q1": "2898f92207a63ffa",
    "networks:Critics._is_batched": "98c482994c5b3875",
    "networks:Critics.is_separable": "f8cadc2e9d4e8c83",
    "ensemble:EnsembleLinear.forward": "45be958f6123850a",
    "ensemble:EnsembleLinear.members": "03c4d014533736de",
    "ensemble:EnsembleLayerNorm.forward": "fd4ba9a60ee566ab",
    "ensemble:EnsembleLayerNorm.members": "a20f858d4e06a8fb",
    "ensemble:EnsembleReLU.members": "743fd2a2446edbdf",
    "networks:compute": "3ff0047cebe9cb2a",
    "networks:members": "9132a5d874164b11",
    "networks:are_separable": "ff4716a43a051293",
    "ensemble:_linear": "b4a36d093ce3a286",
    "ensemble:_layer_norm": "d980f4b02a2318f2",
    "td3:at_least_float32": "898d5940b0d5985b",
    "squared_error": "4fda626386b7367f",
    "huber": "576ed2c22e6cff9e",
}


def forward_functions() -> dict[str, Any]:
    """Return the functions of FORWARD, as `algorithm/` finds them when it runs."""
    found = {name: resolve_name(f"td3_lightning.algorithm.{name}") for name in FORWARD if ":" in name}
    losses = resolve_name("td3_lightning.algorithm.td3:CRITIC_LOSSES")
    return found | {"squared_error": losses.get("mse"), "huber": losses.get("huber")}


def runs_replaced_steps(agent: Any) -> bool:
    """Return whether the steps of an agent are those that the fast updates replace; else say which differs."""
    return _are_unchanged({name: _function(agent, name) for name in STEPS}, STEPS)


def runs_replaced_losses(agent: Any) -> bool:
    """Return whether the losses of an agent are those that the manual update replaces; else say which differs."""
    methods = {name: _function(agent, name) for name in LOSSES}
    return _are_unchanged(methods, LOSSES) and _are_unchanged(forward_functions(), FORWARD)


@cache
def digest(function: Any) -> str:
    """Return a hash of a function's name and code without comments and docstring; "" if there is no source."""
    try:
        node = ast.parse(dedent(inspect.getsource(function.__code__))).body[0]  # the code, because a wrapper may pose
    except (AttributeError, OSError, SyntaxError):  # for example a partial function or a lambda
        return ""
    text = f"{function.__module__}.{function.__qualname__}: {_text(node)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(node: Any) -> str:
    """Return a syntax tree as text that is the same in every version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        fields["body"] = node.body[1:]
    parts = (f"{name}={_text(value)}" for name, value in fields.items() if value not in (None, []))
    return f"{type(node).__name__}({','.join(parts)})"


def _function(agent: Any, name: str) -> Any:
    """Return the function of a bound method; another callable unchanged."""
    method = getattr(agent, name)
    return getattr(method, "__func__", method)


def _are_unchanged(functions: dict[str, Any], digests: dict[str, str]) -> bool:
    changed = next((function for name, function in functions.items() if digest(function) != digests[name]), None)
    if changed is not None:
        name = getattr(changed, "__qualname__", changed)
        _say(f"The fast update is off, because {name} differs from the code that it replaces.")
    return changed is None


@cache
def _say(sentence: str) -> None:
    rank_zero_info(sentence)

"""Files of the deterministic policy of an agent: checked before they are written."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call

from td3_lightning.algorithm.agent import Agent
from td3_lightning.atomic_files import atomic_write
from td3_lightning.errors import UsageError, refuse
from td3_lightning.interop import onnx, pt2
from td3_lightning.interop.metadata import check_trained
from td3_lightning.interop.policy import Act

FORMATS = {".onnx": onnx, ".pt2": pt2}

NUM_CHECKED = 10_000  # observations on which a file is compared with the agent
TOLERANCE = 1e-5  # largest difference of an action, relative to its range, unless the agent itself rounds by more
MAX_NUMBERS = 2**22  # in one batch of observations, 16 MB
LARGE = 1e3  # bounds from which observations are drawn as if there were none


def write_policy(agent: Agent, path: str | Path, metadata: dict[str, Any]) -> float:
    """Write the deterministic policy of an agent, with scaling and clipping of the actions, as an ONNX or a pt2 file.

    The file has the input `obs` (batch, obs_dim) and the output `action` (batch, action_dim), both float32. It is
    compared with the agent before it is written.

    Args:
        agent: Trained agent on the CPU.
        path: New file that ends in .onnx or .pt2.
        metadata: Plain data for the file, see `checkpoint_metadata`.

    Returns:
        The largest difference between the file and the agent on random observations, relative to the action range.

    Raises:
        UsageError: The agent is untrained or has diverged, the metadata is no plain data, a package is missing, the
            path is not a new file of a known format, or the file differs from the agent. Nothing is written.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UsageError(f"output must end in {' or '.join(FORMATS)}, got {path}. Use {path.stem or 'policy'}.onnx.")
    if path.exists():
        raise UsageError(f"output must be a new file, got {path}, which exists. Use another --output.")
    check_metadata(metadata)
    check_trained(agent.updates, dict(agent.named_parameters()), metadata.get("imported", False))
    content = FORMATS[path.suffix].to_bytes(_trace(agent), metadata)
    space = metadata.get("observation_space", {})
    difference = largest_difference(FORMATS[path.suffix].to_act(content), agent.act, agent, space)
    if not difference <= TOLERANCE:
        tolerance = max(TOLERANCE, 2 * rounding_error(agent, space))  # the file and the agent both round
        if not difference <= tolerance:
            raise UsageError(
                f"The actions of {path.name} must differ from the agent's by at most {tolerance:.2g} of their range, "
                f"got {difference:.2g}. Use another format."
            )
    atomic_write(path, lambda file: file.write(content))
    return difference


def check_metadata(metadata: dict[str, Any]) -> None:
    """Raise `UsageError` if a part of the metadata cannot be written as JSON."""
    for key, value in metadata.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            got = type(value).__name__
            raise refuse(f"metadata {key!r}", "plain data for JSON", got, "Use checkpoint_metadata.") from error
        if not isinstance(key, str):
            raise refuse("A key of metadata", "a text", key, "Use str(key).")


class ExportedPolicy(nn.Module):
    """The policy of an agent as a function of tensors, with the final clipping of `Agent.act`.

    The agent is no submodule, so that a graph of this module contains only the weights that its `forward` uses.
    """

    low: Tensor
    high: Tensor

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self._policy = agent.forward
        self._dtype = agent.actor.scale.dtype
        for name, bound in zip(("low", "high"), agent.action_box, strict=True):
            self.register_buffer(name, torch.from_numpy(np.asarray(bound, np.float32)))

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions (batch, action_dim) inside the action box for observations (batch, obs_dim)."""
        action = self._policy(obs.to(self._dtype)).float()
        return torch.minimum(torch.maximum(action, self.low), self.high)


def _trace(agent: Agent) -> ExportedProgram:
    """Return the graph of the policy for any batch size, without the paths of source files."""
    module = ExportedPolicy(agent).eval()
    obs = torch.zeros(2, agent.obs_dim)
    with torch.no_grad():
        program = torch.export.export(module, (obs,), dynamic_shapes={"obs": {0: Dim("batch")}})
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def largest_difference(one: Act, other: Act, agent: Agent, space: dict[str, Any]) -> float:
    """Return the largest difference of two functions on random observations, relative to the action range.

    Args:
        one: Function from observations (n, obs_dim) to actions (n, action_dim).
        other: The function to compare with.
        agent: Agent with the sizes of observations and actions.
        space: Bounds of the observations, `low` and `high`; None for no bound.
    """
    low, high = agent.action_box
    size = max(1, min(NUM_CHECKED, MAX_NUMBERS // agent.obs_dim))
    largest = 0.0
    with _float32_products():
        for first in range(0, NUM_CHECKED, size):
            obs = random_observations(agent.obs_dim, min(size, NUM_CHECKED - first), space, seed=first)
            largest = np.maximum(largest, (np.abs(one(obs) - other(obs)) / (high - low)).max())  # keeps a NaN
    return float(largest)


def rounding_error(agent: Agent, space: dict[str, Any]) -> float:
    """Return the largest difference between `forward` in its precision and in float64, relative to the action range."""
    held = {**dict(agent.named_parameters()), **dict(agent.named_buffers())}
    doubles = {name: value.double() for name, value in held.items() if value.is_floating_point()}

    @torch.no_grad()
    def rounded(obs: NDArray[Any]) -> Any:
        return agent.forward(torch.from_numpy(obs).to(agent.actor.scale)).double().numpy()

    @torch.no_grad()
    def exact(obs: NDArray[Any]) -> Any:
        return functional_call(agent, doubles, torch.from_numpy(obs).double()).numpy()

    return largest_difference(rounded, exact, agent, space)


def random_observations(obs_dim: int, number: int, space: dict[str, Any], seed: int) -> NDArray[np.float32]:
    """Draw observations (number, obs_dim), uniformly between bounds below `LARGE`, else from a standard normal."""
    rng = np.random.default_rng(seed)
    low, high = (
        np.array([np.inf if bound is None else bound for bound in space.get(name, [None] * obs_dim)])
        for name in ("low", "high")
    )
    is_bounded = np.maximum(np.abs(low), np.abs(high)) < LARGE
    uniform = rng.uniform(np.where(is_bounded, low, 0), np.where(is_bounded, high, 1), (number, obs_dim))
    return np.where(is_bounded, uniform, rng.standard_normal((number, obs_dim))).astype(np.float32)


@contextmanager
def _float32_products() -> Iterator[None]:
    """Multiply in float32, as the runtimes do, also if the user chose a smaller precision for training."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

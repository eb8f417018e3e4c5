"""ONNX and pt2 files of the deterministic policy of an agent: checked before they are written."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from td3_lightning.algorithm.agent import Agent
from td3_lightning.algorithm.normalization import CLIP, EPSILON, RunningNormalizer
from td3_lightning.atomic_files import atomic_write
from td3_lightning.errors import UsageError, import_extra
from td3_lightning.interop.metadata import check_trained
from td3_lightning.interop.policy import Act, OnnxAct

PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # of the extra `export`
METADATA = "metadata.json"  # an extra file in a pt2 archive
NUM_CHECKED = 10_000  # observations on which a file is compared with the agent
TOLERANCE = 1e-3  # largest difference of an action, relative to its range; rounding causes up to 6e-5 in HalfCheetah
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
        UsageError: The agent is untrained, a package is missing, the path is not a new file of a known
            format, or the file differs from the agent. Nothing is written.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UsageError(f"output must end in {' or '.join(FORMATS)}, got {path}. Use {path.stem or 'policy'}.onnx.")
    if path.exists():
        raise UsageError(f"output must be a new file, got {path}, which exists. Use another --output.")
    check_trained(agent.updates, metadata.get("imported", False))
    to_bytes, to_act = FORMATS[path.suffix]
    content, space = to_bytes(_trace(agent), metadata), metadata.get("observation_space", {})
    difference = largest_difference(to_act(content), agent.act, agent, space)
    if not difference <= TOLERANCE:
        raise UsageError(
            f"The actions of {path.name} must differ from the agent's by at most {TOLERANCE:g} of their range, got "
            f"{difference:.2g}. Use another format."
        )
    atomic_write(path, lambda file: file.write(content))
    return difference


def to_onnx(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    """Return the content of an ONNX file with the graph of a policy. Each value of the metadata is JSON."""
    for name in PACKAGES:
        import_extra(name, "--format onnx", "export")
    with _quiet():
        exported = torch.onnx.export(
            program,
            input_names=["obs"],
            output_names=["action"],
            dynamic_shapes={"obs": {0: "batch"}},  # the name; the size is dynamic already
            dynamo=True,
            verbose=False,
        )
    model: Any = exported.model_proto  # type: ignore[union-attr]
    for held in (model.graph, *model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info):
        del held.metadata_props[:]  # names of the exporter
    model.producer_name, model.producer_version = "td3_lightning", str(metadata.get("version", ""))
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=json.dumps(value))
    content: bytes = model.SerializeToString()
    return content


def to_pt2(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    """Return the content of a pt2 file with the graph of a policy, which `torch.export.load` opens."""
    file = io.BytesIO()
    with _quiet():
        torch.export.save(program, file, extra_files={METADATA: json.dumps(metadata)})
    return file.getvalue()


def pt2_act(content: bytes) -> Act:
    """Return the function from observations (n, obs_dim) to actions (n, action_dim) of a pt2 file's content."""
    module = torch.export.load(io.BytesIO(content)).module()

    @torch.inference_mode()
    def act(obs: NDArray[Any]) -> NDArray[np.float32]:
        actions: NDArray[np.float32] = module(torch.from_numpy(obs)).numpy()
        return actions

    return act


ToBytes = Callable[[ExportedProgram, dict[str, Any]], bytes]
FORMATS: dict[str, tuple[ToBytes, Callable[[bytes], Act]]] = {".onnx": (to_onnx, OnnxAct), ".pt2": (to_pt2, pt2_act)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporters' notes about optional packages and deprecated names."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


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


class ExportedNormalizer(nn.Module):
    """A `RunningNormalizer` in float32, because many runtimes of ONNX lack float64.

    The mean is a sum of two float32 numbers: the difference of an observation and its rounded mean is exact if both are
    close, and would otherwise be wrong by many standard deviations.
    """

    def __init__(self, normalizer: RunningNormalizer) -> None:
        super().__init__()
        self.mean = normalizer.mean.float()
        self.rest = (normalizer.mean - self.mean).float()
        self.std = (normalizer.var + EPSILON).sqrt().float()

    def forward(self, obs: Tensor) -> Tensor:
        """Normalize observations (..., obs_dim)."""
        return ((obs - self.mean - self.rest) / self.std).clamp(-CLIP, CLIP)


def _trace(agent: Agent) -> ExportedProgram:
    """Return the graph of the policy for any batch size, without the paths of source files."""
    normalizer, obs = agent.normalizer, torch.zeros(2, agent.obs_dim)
    try:
        if isinstance(normalizer, RunningNormalizer):
            agent.normalizer = ExportedNormalizer(normalizer)
        module = ExportedPolicy(agent).eval()
        with torch.no_grad():
            program = torch.export.export(module, (obs,), dynamic_shapes={"obs": {0: Dim("batch")}})
    finally:
        agent.normalizer = normalizer
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def largest_difference(one: Act, other: Act, agent: Agent, space: dict[str, Any]) -> float:
    """Return the largest difference of two functions on random observations of a space, relative to the action range.

    The functions map observations (n, obs_dim) to actions (n, action_dim).
    """
    low, high = agent.action_box
    size = max(1, min(NUM_CHECKED, MAX_NUMBERS // agent.obs_dim))
    largest, precision = 0.0, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # as the runtimes, also if training uses a smaller precision
    try:
        for first in range(0, NUM_CHECKED, size):
            obs = random_observations(agent.obs_dim, min(size, NUM_CHECKED - first), space, seed=first)
            largest = np.maximum(largest, (np.abs(one(obs) - other(obs)) / (high - low)).max())  # keeps a NaN
    finally:
        torch.set_float32_matmul_precision(precision)
    return float(largest)


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

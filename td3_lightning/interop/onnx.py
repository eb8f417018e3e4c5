"""Policies as ONNX files."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram

from td3_lightning.errors import import_extra
from td3_lightning.interop.policy import Act, open_session, session_act

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def to_bytes(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    """Return the content of an ONNX file with the graph of a policy. Each value of the metadata is JSON.

    Raises:
        UsageError: A package of the extra `export` is missing.
    """
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


def to_act(content: bytes) -> Act:
    """Return the function from observations (n, obs_dim) to actions (n, action_dim) of a file's content."""
    return session_act(open_session(content))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's notes about optional packages and deprecated names."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

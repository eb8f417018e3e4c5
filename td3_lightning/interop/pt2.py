"""Policies as pt2 files, which `torch.export.load` opens."""

import io
import json
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from td3_lightning.interop.policy import Act

METADATA = "metadata.json"  # an extra file in the archive


def to_bytes(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    """Return the content of a pt2 file with the graph of a policy."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names within torch
        torch.export.save(program, file, extra_files={METADATA: json.dumps(metadata)})
    return file.getvalue()


def to_act(content: bytes) -> Act:
    """Return the function from observations (n, obs_dim) to actions (n, action_dim) of a file's content."""
    module = torch.export.load(io.BytesIO(content)).module()

    @torch.inference_mode()
    def act(obs: NDArray[Any]) -> NDArray[np.float32]:
        actions: NDArray[np.float32] = module(torch.from_numpy(obs)).numpy()
        return actions

    return act

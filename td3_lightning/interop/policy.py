"""Policies for robots and services: actions from an ONNX file or a checkpoint.

An ONNX file is read with onnxruntime alone: neither torch, lightning nor gymnasium is imported.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from td3_lightning.errors import UsageError, import_extra, one_line
from td3_lightning.serialization.observation_parts import flat_rows

Act = Callable[[NDArray[Any]], NDArray[np.float32]]


class Policy:
    """Deterministic policy, with the scaling and clipping of the actions inside.

    `Policy.load` creates it from a file. A call returns actions for observations. A policy can be pickled, for example
    for a process that `multiprocessing` starts.

    Args:
        act: Function from observations (obs_dim,) or (n, obs_dim) to actions (action_dim,) or (n, action_dim).
        obs_dim: Numbers in an observation.
        metadata: Environment, spaces, training steps and version, as in the file.
    """

    def __init__(self, act: Act, obs_dim: int, metadata: dict[str, Any]) -> None:
        self._act, self.obs_dim, self.metadata = act, obs_dim, metadata

    @classmethod
    def load(cls, path: str | Path) -> "Policy":
        """Load a policy from an ONNX file of `export` or from a checkpoint. Neither can run code.

        Args:
            path: File that ends in .onnx, or a checkpoint.

        Raises:
            UsageError: The file does not exist or holds no policy, or onnxruntime is not installed.
        """
        path = Path(path)
        if path.suffix == ".pt2":
            raise UsageError(
                f"path must be an ONNX file or a checkpoint, got {path}. Use torch.export.load for a pt2 file."
            )
        return _from_onnx(cls, path) if path.suffix == ".onnx" else _from_checkpoint(cls, path)

    def __call__(self, obs: Any) -> NDArray[np.float32]:
        """Return actions in the environment's units and inside the action box.

        Args:
            obs: One observation (obs_dim,) or several (n, obs_dim), or one dict, tuple or discrete observation of the
                environment.

        Returns:
            One action (action_dim,) or several (n, action_dim).

        Raises:
            UsageError: The observations have another shape.
        """
        return self._act(flat_rows(self.metadata.get("observation_parts"), obs, self.obs_dim))


class OnnxAct:
    """Function from observations to actions, computed by onnxruntime on one CPU thread.

    Args:
        model: Content of an ONNX file.
    """

    def __init__(self, model: bytes) -> None:
        onnxruntime = import_extra("onnxruntime", "An ONNX policy", "export")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # other threads would busy-wait, and a small network is not faster with them
        options.log_severity_level = 3  # errors
        self._model = model
        self.session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def __call__(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Return actions (n, action_dim) or (action_dim,) for observations (n, obs_dim) or (obs_dim,)."""
        rows = np.atleast_2d(obs).astype(np.float32, copy=False)
        actions: NDArray[np.float32] = self.session.run(["action"], {"obs": rows})[0]
        return actions if obs.ndim == 2 else actions[0]

    def __reduce__(self) -> Any:
        """Pickle the content of the file, because a session cannot be pickled."""
        return OnnxAct, (self._model,)


def _from_onnx(kind: type[Policy], path: Path) -> Policy:
    try:
        act = OnnxAct(path.read_bytes())
        metadata = {key: json.loads(text) for key, text in act.session.get_modelmeta().custom_metadata_map.items()}
        obs_dim = int(act.session.get_inputs()[0].shape[1])
    except UsageError:
        raise
    except Exception as error:  # the exceptions of onnxruntime have no common base class
        got = one_line(error)[:120]
        raise UsageError(
            f"{path} must be a policy that td3_lightning has exported, got an error: {got}. Use another file."
        ) from error
    return kind(act, obs_dim, metadata)


def _from_checkpoint(kind: type[Policy], path: Path) -> Policy:
    """Load an agent for its method `act`. Only here are torch and lightning imported."""
    from td3_lightning.algorithm.td3 import TD3
    from td3_lightning.algorithm.td7 import TD7
    from td3_lightning.interop.metadata import checkpoint_metadata
    from td3_lightning.serialization.checkpoint_file import read_checkpoint

    checkpoint = read_checkpoint(path)
    agents: dict[str, type[TD3]] = {"TD3": TD3, "TD7": TD7}
    agent = agents[checkpoint.get("algorithm", "TD3")].load_from_checkpoint(path)
    return kind(agent.act, agent.obs_dim, checkpoint_metadata(checkpoint))

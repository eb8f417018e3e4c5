"""Metadata of a policy: its environment, spaces and training, as plain data."""

import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from td3_lightning.envs.wrappers import observation_parts
from td3_lightning.errors import UsageError
from td3_lightning.training.data_module import ReplayData

ROOT = Path(__file__).parents[2]


def checkpoint_metadata(checkpoint: Mapping[str, Any], data: ReplayData | None = None) -> dict[str, Any]:
    """Return the metadata of the policy in a checkpoint.

    Args:
        checkpoint: Checkpoint, as returned by `read_checkpoint`.
        data: Data module with the environment. Without it, the bounds of the observations are unknown.

    Returns:
        Plain data, which JSON can represent. `evaluation` holds the monitored metric at the last evaluation before the
        checkpoint was saved, for example {"eval/return_mean": 250.0}.
    """
    settings, configured = checkpoint["hyper_parameters"], checkpoint.get("config", {}).get("data")
    configured = configured if isinstance(configured, dict) else {}  # nothing has checked it
    box: Any = None if data is None else data.eval_env.observation_space
    unknown = [math.inf] * settings["obs_dim"]
    parts = checkpoint.get("observation_parts") if data is None else observation_parts(data.eval_env)
    return {
        "env_id": configured.get("env_id") if data is None else data.env_id,
        "wrappers": configured.get("wrappers"),
        "observation_space": _box(unknown, unknown) if box is None else _box(box.low, box.high),
        "observation_parts": parts,
        "action_space": _box(settings["action_low"], settings["action_high"]),
        "algorithm": checkpoint.get("algorithm", "TD3"),
        "env_steps": checkpoint["clocks"]["env_steps"],
        "updates": checkpoint["clocks"]["updates"],
        "imported": is_imported(checkpoint),
        "evaluation": _evaluation(checkpoint.get("callbacks", {})),
    }


def is_imported(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether `import` made a checkpoint, which has no data module and perhaps an unknown number of updates."""
    return not any(isinstance(state, dict) and "ranks" in state for state in checkpoint.values())


def check_trained(updates: int, imported: bool = False) -> None:
    """Raise `UsageError` if an agent is untrained."""
    if not updates and not imported:
        raise UsageError("export requires a trained agent, got one with 0 updates. Use a checkpoint after the warm-up.")


def _box(low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    """Describe a one-dimensional `Box`. JSON has no infinity, so null stands for no bound."""
    bounds = {name: [_bound(value) for value in values] for name, values in (("low", low), ("high", high))}
    return {"type": "Box", "shape": [len(low)], **bounds}


def _bound(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _evaluation(callbacks: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the newest value of the metric by which the best checkpoint is chosen; empty without an evaluation."""
    state: Any = next((state for name, state in callbacks.items() if name.startswith("BestCheckpoint")), None)
    with suppress(KeyError, TypeError, ValueError):  # no evaluation, or an untrusted checkpoint
        return {str(state["monitor"]): _bound(float(state["current_score"]))}
    return {}


def commit() -> str | None:
    """Return the commit of this package; None if it does not run from a git checkout."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return None
    found = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--verify", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or None
